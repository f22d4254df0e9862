// Products of packed panels by AMX: 16 tokens x 16 rows x a block in one tile instruction. A block's sums
// leave the tile for memory and meet their scales there, in the order of every other level; storing the tile
// (27 cycles) and scaling (3 or 4 operations for each of 16 tokens) cost more than the product (16 cycles),
// so the sums of the next block are on their way meanwhile. Panels are unpacked to signed bytes once for all
// tokens.
#include <cstring>
#include <utility>

#include "device/cpu/tiles.h"
#include "kernels/linear/block_avx512.h"

namespace se::linear_detail {
namespace {

constexpr int kTileTokens = kGroup;
constexpr int64_t kFewTokens = 4;  // that many are left to VNNI

// Tiles: 0 to 3 sums, 4 tokens x 32 bytes, 5 a block; 6 and 7 the same of half a block (scaled halves).
constexpr cpu::TileConfig kTiles = {.row_bytes = {64, 64, 64, 64, 32, 64, 16, 64},
                                    .rows = {16, 16, 16, 16, 16, 8, 16, 4}};

struct Unpacked {
  int8_t* codes = nullptr;  // [blocks, 8, 64]
  float* scales = nullptr;  // [blocks, 3, 16]: d; m or the first half's; the second's. Minima of halves:
                            // [blocks, 6, 16], then m, the first's, the second's
};

constexpr int kMostScales = 96;  // floats of a block
constexpr int scales_of(BlockType type) { return has_minima(type) ? kMostScales : 48; }

Unpacked unpacked_at(BlockType type, void* scratch, int64_t blocks, int64_t panel) {
  int8_t* base = static_cast<int8_t*>(scratch) + panel * blocks * (512 + 4 * scales_of(type));
  return {base, reinterpret_cast<float*>(base + blocks * 512)};
}

template <BlockType kType>
void unpack(const Panel& p, int64_t blocks, const Unpacked& out) {
  const __m512i offset = _mm512_set1_epi8(char(offset_of(kType)));
  for (int64_t b = 0; b < blocks; ++b) {
    __m512i u[8];
    load_codes<kType>(p.codes + b * packed_layout(kType).codes, u);
    for (int k = 0; k < 8; ++k)
      _mm512_store_si512(out.codes + b * 512 + k * 64, _mm512_sub_epi8(u[k], offset));
    const Scales s = load_scales<kType>(p, b);
    float* scales = out.scales + b * scales_of(kType);
    _mm512_store_ps(scales, s.d);
    _mm512_store_ps(scales + 16, scales_halves(kType) ? s.first : s.m);
    _mm512_store_ps(scales + 32, s.second);
    if constexpr (has_minima(kType)) {
      _mm512_store_ps(scales + 48, s.m);
      _mm512_store_ps(scales + 64, s.min_first), _mm512_store_ps(scales + 80, s.min_second);
    }
  }
}

template <int kTile>
inline void for_half(const int8_t* q, const int8_t* codes, int32_t* to) {
  cpu::load_tile<6>(q, 32);
  cpu::load_tile<7>(codes);
  cpu::zero_tile<kTile>();
  cpu::multiply_int8<kTile, 6, 7>();
  cpu::store_tile<kTile>(to);
}

// Sums of 16 tokens, from `q` on 32 bytes apart, and a block into `to` [2 if halves have scales, 16, 16].
template <BlockType kType, int kTile>
inline void multiply(const int8_t* q, const int8_t* codes, int32_t* to) {
  static_assert(kTile == 0 || kTile == 1);
  if constexpr (scales_halves(kType)) {
    for_half<kTile>(q, codes, to);
    for_half<kTile + 2>(q + 16, codes + 256, to + 256);
  } else {
    cpu::load_tile<4>(q, 32);
    cpu::load_tile<5>(codes);
    cpu::zero_tile<kTile>();
    cpu::multiply_int8<kTile, 4, 5>();
    cpu::store_tile<kTile>(to);
  }
}

template <BlockType kType>
inline Scales scales_at(const float* p) {
  Scales s{};
  s.d = _mm512_load_ps(p);
  if constexpr (has_minimum(kType)) s.m = _mm512_load_ps(p + 16);
  if constexpr (scales_halves(kType)) s.first = _mm512_load_ps(p + 16), s.second = _mm512_load_ps(p + 32);
  if constexpr (has_minima(kType)) {
    s.m = _mm512_load_ps(p + 48);
    s.min_first = _mm512_load_ps(p + 64), s.min_second = _mm512_load_ps(p + 80);
  }
  return s;
}

// One block's sums of 16 tokens, from place `at` on, into acc. The tokens are unrolled by name, so that acc
// stays in registers.
template <BlockType kType, size_t... kToken>
[[gnu::always_inline]] inline void add_tokens(std::index_sequence<kToken...>,
                                              const float* scales,
                                              const int32_t* sums,
                                              const Activations& x,
                                              int64_t at,
                                              __m512 (&acc)[kTileTokens]) {
  const Scales s = scales_at<kType>(scales);
  const auto product = [&](size_t t) {
    const __m512i first = _mm512_load_si512(sums + 16 * t);
    if constexpr (scales_halves(kType))
      return join_halves(s, first, _mm512_load_si512(sums + 256 + 16 * t));
    else
      return _mm512_cvtepi32_ps(first);
  };
  ((acc[kToken] = add_block<kType>(s, x, at + int64_t(kToken), product(kToken), acc[kToken])), ...);
}

// The group of n tokens that begins with `token`; tiles go beyond them, which is not stored.
template <BlockType kType>
void tile(const Unpacked& w, int64_t row, const Activations& x, int64_t token, int64_t n, const Output& y) {
  alignas(64) int32_t sums[2][512];
  __m512 acc[kTileTokens] = {};
  constexpr auto kAll = std::make_index_sequence<kTileTokens>();
  constexpr int kScales = scales_of(kType);
  const int64_t blocks = x.blocks, step = group_tokens(x, token);
  int64_t at = place(x, token, 0);
  const int8_t *q = x.q + at * kBlock, *codes = w.codes;
  const float* scales = w.scales;
  const auto next = [&] { q += step * kBlock, codes += 512; };
  multiply<kType, 0>(q, codes, sums[0]);
  int64_t b = 0;
  for (; b + 2 <= blocks; b += 2) {
    next();
    multiply<kType, 1>(q, codes, sums[1]);
    add_tokens<kType>(kAll, scales, sums[0], x, at, acc);
    if (b + 2 < blocks) {
      next();
      multiply<kType, 0>(q, codes, sums[0]);
    }
    add_tokens<kType>(kAll, scales + kScales, sums[1], x, at + step, acc);
    scales += 2 * kScales, at += 2 * step;
  }
  if (b < blocks) add_tokens<kType>(kAll, scales, sums[0], x, at, acc);
  alignas(64) float out[kTileTokens][kPanelRows];
  std::memcpy(out, acc, sizeof out);
  for (int64_t t = 0; t < n; ++t) store_rows(y, row, token + t, _mm512_load_ps(out[t]));
}

template <BlockType kType>
void panels(
    const Panels& w, const Activations& x, int64_t begin, int64_t end, const Output& y, void* scratch) {
  for (int64_t i = w.begin; i < w.end; ++i)
    unpack<kType>(
        panel_at(kType, w.packed, x.blocks, i), x.blocks, unpacked_at(kType, scratch, x.blocks, i - w.begin));
  for (int64_t t = begin; t < end; t += kTileTokens) {
    const int64_t n = end - t < kTileTokens ? end - t : kTileTokens;
    for (int64_t i = w.begin; i < w.end; ++i)
      tile<kType>(unpacked_at(kType, scratch, x.blocks, i - w.begin), i * kPanelRows, x, t, n, y);
  }
}

}  // namespace

int64_t tile_scratch_bytes(int64_t blocks) { return kTilePanels * blocks * (512 + 4 * kMostScales); }

void panels_amx(
    const Panels& w, const Activations& x, int64_t begin, int64_t end, const Output& y, void* scratch) {
  const int64_t rest = (end - begin) % kTileTokens;
  const int64_t few = rest <= kFewTokens ? rest : 0;
  if (few > 0) panels_avx512(w, x, end - few, end, y);
  end -= few;
  if (begin == end) return;
  cpu::configure_tiles(kTiles);
  switch (w.type) {
    case BlockType::kQ4_0:
      panels<BlockType::kQ4_0>(w, x, begin, end, y, scratch);
      break;
    case BlockType::kQ4_1:
      panels<BlockType::kQ4_1>(w, x, begin, end, y, scratch);
      break;
    case BlockType::kQ5_0:
      panels<BlockType::kQ5_0>(w, x, begin, end, y, scratch);
      break;
    case BlockType::kQ5_1:
      panels<BlockType::kQ5_1>(w, x, begin, end, y, scratch);
      break;
    case BlockType::kQ8_0:
      panels<BlockType::kQ8_0>(w, x, begin, end, y, scratch);
      break;
    case BlockType::kQ2_K:
      panels<BlockType::kQ2_K>(w, x, begin, end, y, scratch);
      break;
    case BlockType::kQ3_K:
      panels<BlockType::kQ3_K>(w, x, begin, end, y, scratch);
      break;
    case BlockType::kQ4_K:
      panels<BlockType::kQ4_K>(w, x, begin, end, y, scratch);
      break;
    case BlockType::kQ5_K:
      panels<BlockType::kQ5_K>(w, x, begin, end, y, scratch);
      break;
    case BlockType::kQ6_K:
      panels<BlockType::kQ6_K>(w, x, begin, end, y, scratch);
      break;
  }
  cpu::release_tiles();
}

}  // namespace se::linear_detail
