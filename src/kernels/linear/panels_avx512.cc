// Products of packed panels by VNNI: a block is unpacked once and meets up to eight tokens, whose sums stay
// in registers. u x q, unsigned times signed, is what the instruction multiplies; sums begin at -offset sum
// q.
#include <cstring>
#include <utility>

#include "kernels/linear/block_avx512.h"

namespace se::linear_detail {
namespace {

inline __m512i four_bytes(const int8_t* q) {
  int v;
  std::memcpy(&v, q, 4);
  return _mm512_set1_epi32(v);
}

template <BlockType kType>
inline __m512 product(const __m512i* u, const Scales& s, const Activations& x, int64_t at) {
  constexpr int kOffset = offset_of(kType);
  const int8_t* q = x.q + at * kBlock;
  const auto sums = [&](__m512i sum, int from, int to) {
    for (int k = from; k < to; ++k) sum = _mm512_dpbusd_epi32(sum, u[k], four_bytes(q + 4 * k));
    return sum;
  };
  if constexpr (scales_halves(kType)) {
    const int half = x.half[at];
    return join_halves(s,
                       sums(_mm512_set1_epi32(-kOffset * half), 0, 4),
                       sums(_mm512_set1_epi32(-kOffset * (x.sum[at] - half)), 4, 8));
  } else {
    const __m512i start = kOffset == 0 ? _mm512_setzero_si512() : _mm512_set1_epi32(-kOffset * x.sum[at]);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(sums(start, 0, 4), sums(_mm512_setzero_si512(), 4, 8)));
  }
}

// Tokens of one group from `token` on, unrolled by name, so that their sums stay in registers.
template <BlockType kType, size_t... kToken>
void panel(std::index_sequence<kToken...>,
           const Panel& p,
           int64_t row,
           const Activations& x,
           int64_t token,
           const Output& y) {
  constexpr PackedLayout l = packed_layout(kType);
  constexpr int64_t kAhead = 4096;  // bytes of codes
  __m512 acc[sizeof...(kToken)] = {};
  const int64_t step = group_tokens(x, token / kGroup * kGroup);
  int64_t at = place(x, token, 0);
  for (int64_t b = 0; b < x.blocks; ++b, at += step) {
    const uint8_t* codes = p.codes + b * l.codes;
    for (int i = 0; i < l.codes; i += 64)
      _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead + i), _MM_HINT_T0);
    __m512i u[8];
    load_codes<kType>(codes, u);
    const Scales s = load_scales<kType>(p, b);
    ((acc[kToken] = add_block<kType>(
          s, x, at + int64_t(kToken), product<kType>(u, s, x, at + int64_t(kToken)), acc[kToken])),
     ...);
  }
  (store_rows(y, row, token + int64_t(kToken), acc[kToken]), ...);
}

template <BlockType kType>
void panels(const Panels& w, const Activations& x, int64_t begin, int64_t end, const Output& y) {
  for (int64_t i = w.begin; i < w.end; ++i) {
    const Panel p = panel_at(kType, w.packed, x.blocks, i);
    const int64_t row = i * kPanelRows;
    int64_t t = begin;
    for (; t + 8 <= end; t += 8) panel<kType>(std::make_index_sequence<8>(), p, row, x, t, y);
    if (end - t >= 4) panel<kType>(std::make_index_sequence<4>(), p, row, x, t, y), t += 4;
    if (end - t >= 2) panel<kType>(std::make_index_sequence<2>(), p, row, x, t, y), t += 2;
    if (end - t >= 1) panel<kType>(std::make_index_sequence<1>(), p, row, x, t, y);
  }
}

}  // namespace

void panels_avx512(const Panels& w, const Activations& x, int64_t begin, int64_t end, const Output& y) {
  switch (w.type) {
    case BlockType::kQ4_0:
      return panels<BlockType::kQ4_0>(w, x, begin, end, y);
    case BlockType::kQ4_1:
      return panels<BlockType::kQ4_1>(w, x, begin, end, y);
    case BlockType::kQ5_0:
      return panels<BlockType::kQ5_0>(w, x, begin, end, y);
    case BlockType::kQ5_1:
      return panels<BlockType::kQ5_1>(w, x, begin, end, y);
    case BlockType::kQ8_0:
      return panels<BlockType::kQ8_0>(w, x, begin, end, y);
    case BlockType::kQ2_K:
      return panels<BlockType::kQ2_K>(w, x, begin, end, y);
    case BlockType::kQ3_K:
      return panels<BlockType::kQ3_K>(w, x, begin, end, y);
    case BlockType::kQ4_K:
      return panels<BlockType::kQ4_K>(w, x, begin, end, y);
    case BlockType::kQ5_K:
      return panels<BlockType::kQ5_K>(w, x, begin, end, y);
    case BlockType::kQ6_K:
      return panels<BlockType::kQ6_K>(w, x, begin, end, y);
  }
}

}  // namespace se::linear_detail
