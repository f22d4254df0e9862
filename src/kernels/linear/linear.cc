#include "kernels/linear/linear.h"

#include <algorithm>
#include <optional>

#include "device/cpu/isa.h"
#include "device/cpu/thread_pool.h"
#include "kernels/linear/linear_routines.h"
#include "kernels/linear/packed.h"
#include "kernels/quant/quant.h"

namespace se {
namespace {

using linear_detail::Activations;
using linear_detail::BlockType;
using linear_detail::FloatType;
using linear_detail::kBlock;
using linear_detail::kGroup;
using linear_detail::kMaxTokens;
using linear_detail::kPanelRows;
using linear_detail::kTilePadding;
using linear_detail::kTilePanels;
using linear_detail::Output;
using linear_detail::Panels;
using linear_detail::Rounded;
using linear_detail::Routines;
using linear_detail::Rows;

const Routines& routines() {
  return cpu::isa() >= cpu::Isa::kAvx2 ? linear_detail::avx2_routines() : linear_detail::ref_routines();
}

// The types whose blocks are multiplied as they lie.
std::optional<BlockType> block_type(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return BlockType::kQ4_0;
    case DType::kQ4_1:
      return BlockType::kQ4_1;
    case DType::kQ5_0:
      return BlockType::kQ5_0;
    case DType::kQ5_1:
      return BlockType::kQ5_1;
    case DType::kQ8_0:
      return BlockType::kQ8_0;
    case DType::kQ2_K:
      return BlockType::kQ2_K;
    case DType::kQ3_K:
      return BlockType::kQ3_K;
    case DType::kQ4_K:
      return BlockType::kQ4_K;
    case DType::kQ5_K:
      return BlockType::kQ5_K;
    case DType::kQ6_K:
      return BlockType::kQ6_K;
    default:
      return std::nullopt;
  }
}

// The types whose rows AVX-512 reads as they lie.
std::optional<FloatType> float_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return FloatType::kF32;
    case DType::kF16:
      return FloatType::kF16;
    case DType::kBF16:
      return FloatType::kBF16;
    default:
      return std::nullopt;
  }
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of an item, a multiple of eight: a few items per thread for balance, each of some microseconds' work
// (bytes of weights times tokens), and small enough that a chunk of tokens meets them while they are in the
// cache.
int64_t rows_per_item(int64_t out, int64_t row_bytes, int64_t tokens, int threads) {
  int64_t rows = ceil_div(out, int64_t(threads) * 6 * 8) * 8;
  while (rows < 64 && rows * row_bytes * tokens < 16384) rows += 8;
  return std::clamp<int64_t>(rows, 8, 64);
}

bool avx512() { return cpu::isa() >= cpu::Isa::kAvx512; }

Activations quantise(const TensorView& x, Arena& scratch, Stream& stream) {
  Activations a;
  a.tokens = x.shape[0], a.blocks = x.shape[1] / kBlock;
  const int64_t n = a.tokens * a.blocks + kTilePadding;
  a.q = scratch.take<int8_t>(n * kBlock).data();
  a.d = scratch.take<float>(n).data();
  a.dsum = scratch.take<float>(n).data();
  a.sum = scratch.take<int32_t>(n).data();
  a.half = scratch.take<int32_t>(n).data();
  const auto quantise = avx512() ? linear_detail::quantise_avx512 : routines().quantise;
  stream.pool().run(ceil_div(a.tokens, kGroup), [&](int64_t item, int) {
    quantise(x.ptr<float>(), item * kGroup, std::min(a.tokens, (item + 1) * kGroup), a);
  });
  return a;
}

// Tokens that one pass over rows takes: as many as stay in half an L2 (192 KiB), for all tiles of an item
// read them again.
int64_t token_chunk(int64_t in) {
  constexpr int64_t kChunkBytes = 192 << 10;
  return std::clamp<int64_t>(kChunkBytes / in / kGroup * kGroup, 32, kMaxTokens);
}

Output output_of(const Product& p) {
  return {p.y.ptr<float>(), p.w.shape[0], p.bias.empty() ? nullptr : p.bias.ptr<float>()};
}

void run_blocks(const Product& p, const Activations& a, Stream& stream) {
  const Routines& r = routines();
  const TensorView& w = p.w;
  const BlockType type = *block_type(w.dtype);
  const Output y = output_of(p);
  const int64_t out = w.shape[0], in = w.shape[1], tokens = a.tokens, chunk = token_chunk(in);
  const int64_t step = rows_per_item(out, bytes_of(w.dtype, in), tokens, stream.pool().threads());
  stream.pool().run(ceil_div(out, step), [&](int64_t item, int) {
    const Rows rows{w.data, w.stride[0], item * step, std::min(out, (item + 1) * step)};
    for (int64_t t = 0; t < tokens; t += chunk)
      r.block_rows(type, rows, a, t, std::min(tokens, t + chunk), y);
  });
}

// Panels of an item: eight items a thread for balance, but some microseconds' work each.
int64_t panels_per_item(int64_t panels, int64_t panel_bytes, int64_t tokens, int threads) {
  constexpr int64_t kLeastBytes = 24 << 10;
  return std::max(
      {ceil_div(panels, int64_t(threads) * 8), ceil_div(kLeastBytes, panel_bytes * tokens), int64_t{1}});
}

// Tokens of an item of tiles: all of them, unless that leaves threads idle; then no fewer than 64, for
// unpacking costs what five of them do.
int64_t tile_cut(int64_t tokens, int64_t items, int threads) {
  constexpr int64_t kLeastTokens = 64;
  const int64_t cuts =
      std::clamp<int64_t>(ceil_div(int64_t(threads) * 4, items), 1, ceil_div(tokens, kLeastTokens));
  return ceil_div(ceil_div(tokens, cuts), kGroup) * kGroup;
}

// All products with packed weights, in one run of the pool. Each matrix is divided among the pool's nodes as
// when its panels were written (ThreadPool::share_begin), so that a node's threads read what is near them.
void run_panels(std::span<const Product> products, const Activations& a, Arena& scratch, Stream& stream) {
  constexpr int64_t kTileTokens = 12;  // from here on tiles are faster than VNNI
  const bool tiles = cpu::isa() >= cpu::Isa::kAmx && a.tokens >= kTileTokens;
  const ThreadPool& pool = stream.pool();
  const int threads = pool.threads(), nodes = pool.nodes();
  struct Share {
    const Product* product;
    Panels panels;  // a node's
    int64_t first_item, step;
  };
  std::span<Share> shares = scratch.take<Share>(int64_t(products.size()) * nodes);
  std::span<int64_t> begins = scratch.take<int64_t>(nodes + 1);
  size_t used = 0;
  int64_t items = 0;
  begins[0] = 0;
  for (int node = 0; node < nodes; ++node) {
    for (const Product& p : products) {
      if (p.w.packed == nullptr) continue;
      const BlockType type = *block_type(p.w.dtype);
      const int64_t panels = packed_panels(p.w), bytes = linear_detail::panel_bytes(type, a.blocks);
      const int64_t step = panels_per_item(panels, bytes, a.tokens, threads);
      const Panels w{type, p.w.packed, pool.share_begin(node, panels), pool.share_begin(node + 1, panels)};
      shares[used] = {&p, w, items, tiles ? std::min(step, kTilePanels) : step};
      items += ceil_div(w.end - w.begin, shares[used++].step);
    }
    begins[size_t(node + 1)] = items;
  }
  const int64_t tile_bytes = tiles ? linear_detail::tile_scratch_bytes(a.blocks) : 0;
  char* tile_scratch = scratch.take<char>(tile_bytes * threads).data();
  const int64_t chunk = token_chunk(a.blocks * kBlock);
  const int64_t cut = tiles ? tile_cut(a.tokens, items, threads) : a.tokens, cuts = ceil_div(a.tokens, cut);
  for (int64_t& begin : begins) begin *= cuts;
  stream.pool().run(begins, [&](int64_t index, int thread) {
    const int64_t item = index / cuts, begin = index % cuts * cut, end = std::min(a.tokens, begin + cut);
    size_t s = used - 1;
    while (shares[s].first_item > item) --s;
    const Share& share = shares[s];
    Panels w = share.panels;
    w.begin += (item - share.first_item) * share.step, w.end = std::min(w.end, w.begin + share.step);
    const Output y = output_of(*share.product);
    if (tiles) return linear_detail::panels_amx(w, a, begin, end, y, tile_scratch + thread * tile_bytes);
    for (int64_t t = begin; t < end; t += chunk)
      linear_detail::panels_avx512(w, a, t, std::min(end, t + chunk), y);
  });
}

int64_t float_rows_per_item(int64_t in) {
  constexpr int64_t kTileFloats = 32768;  // of dequantised weights: a quarter of an L2
  return std::clamp<int64_t>(kTileFloats / in / 4 * 4, 4, 32);
}

void run_floats(const TensorView& x, const Product& p, Arena& scratch, Stream& stream) {
  const Routines& r = routines();
  const TensorView& w = p.w;
  const Output y = output_of(p);
  const int64_t out = w.shape[0], in = w.shape[1], tokens = x.shape[0], threads = stream.pool().threads();
  const int64_t step = float_rows_per_item(in);
  const auto type = float_type(w.dtype);
  const bool plain = w.dtype == DType::kF32 || (avx512() && type);
  float* buffers = plain ? nullptr : scratch.take<float>(threads * step * in).data();
  stream.pool().run(ceil_div(out, step), [&](int64_t item, int thread) {
    Rows rows{nullptr, 0, item * step, std::min(out, (item + 1) * step)};
    if (plain) {
      rows.data = w.at<char>(rows.begin), rows.stride = w.stride[0];
    } else {
      float* buffer = buffers + thread * step * in;
      for (int64_t row = rows.begin; row < rows.end; ++row)
        dequantize(w.dtype, w.at<char>(row), in, buffer + (row - rows.begin) * in);
      rows.data = buffer, rows.stride = in * int64_t(sizeof(float));
    }
    if (avx512()) {
      linear_detail::float_rows_avx512(type.value_or(FloatType::kF32), rows, x.ptr<float>(), tokens, in, y);
    } else {
      r.float_rows(rows, x.ptr<float>(), tokens, in, y);
    }
  });
}

bool has_bf16_products() { return avx512() && cpu::has_avx512_bf16(); }

// x rounded, in the form that run_rounded's routine takes.
Rounded round(const TensorView& x, Arena& scratch, Stream& stream) {
  Rounded r;
  r.tokens = x.shape[0], r.in = x.shape[1], r.stride = linear_detail::rounded_stride(r.in);
  uint16_t* brains = scratch.take<uint16_t>(r.tokens * r.stride).data();
  const bool parts = !has_bf16_products();
  float* floats = parts ? scratch.take<float>(r.tokens * r.stride).data() : nullptr;
  stream.pool().run(r.tokens, [&](int64_t t, int) {
    uint16_t* to = brains + t * r.stride;
    linear_detail::round_token(x.at<float>(t), r.in, to);
    if (parts) linear_detail::part_row(to, r.stride, floats + t * r.stride);
  });
  r.x = parts ? static_cast<const void*>(floats) : brains;
  return r;
}

// BF16 weights by rounded activations.
void run_rounded(const Rounded& x, const Product& p, Arena& scratch, Stream& stream) {
  const Routines& r = routines();
  const TensorView& w = p.w;
  const Output y = output_of(p);
  const int64_t out = w.shape[0], threads = stream.pool().threads(), step = float_rows_per_item(x.in);
  float* buffers = avx512() ? nullptr : scratch.take<float>(threads * step * x.stride).data();
  stream.pool().run(ceil_div(out, step), [&](int64_t item, int thread) {
    Rows rows{nullptr, 0, item * step, std::min(out, (item + 1) * step)};
    rows.data = w.at<char>(rows.begin), rows.stride = w.stride[0];
    if (has_bf16_products()) return linear_detail::rounded_rows_avx512bf16(rows, x, y);
    if (avx512()) return linear_detail::rounded_rows_avx512(rows, x, y);
    float* buffer = buffers + thread * step * x.stride;
    for (int64_t row = rows.begin; row < rows.end; ++row)
      linear_detail::part_row(w.at<char>(row), x.in, buffer + (row - rows.begin) * x.stride);
    rows.data = buffer, rows.stride = x.stride * int64_t(sizeof(float));
    r.float_rows(rows, static_cast<const float*>(x.x), x.tokens, x.stride, y);
  });
}

void check(const TensorView& x, const Product& p) {
  const TensorView &w = p.w, &bias = p.bias, &y = p.y;
  SE_CHECK(
      w.rank == 2 && supports_linear(w.dtype) && w.shape[1] > 0 && w.shape[1] % block_elements(w.dtype) == 0,
      "linear: w {}, wanted [out, in] of a float or block type",
      to_string(w));
  SE_CHECK(w.dtype != DType::kF32 || w.stride[0] % int64_t(sizeof(float)) == 0,
           "linear: f32 rows {} bytes apart",
           w.stride[0]);
  const int64_t out = w.shape[0], in = w.shape[1];
  SE_CHECK(x.dtype == DType::kF32 && x.rank == 2 && x.shape[1] == in && x.contiguous(),
           "linear: x {}, wanted f32 [tokens, {}]",
           to_string(x),
           in);
  SE_CHECK(y.dtype == DType::kF32 && y.rank == 2 && y.shape[0] == x.shape[0] && y.shape[1] == out &&
               y.contiguous(),
           "linear: y {}, wanted f32 [{}, {}]",
           to_string(y),
           x.shape[0],
           out);
  SE_CHECK(bias.empty() || (bias.dtype == DType::kF32 && bias.numel() == out && bias.contiguous()),
           "linear: bias {}, wanted f32 [{}]",
           to_string(bias),
           out);
}

}  // namespace

bool supports_linear(DType w) { return supports_dequantize(w); }

int64_t packed_panels(const TensorView& w) { return ceil_div(w.shape[0], kPanelRows); }

int64_t packed_bytes(const TensorView& w) {
  const auto type = block_type(w.dtype);
  constexpr int64_t kMostStride = int64_t{1} << 27;
  if (!avx512() || !type || w.rank != 2 || w.stride[0] >= kMostStride) return 0;
  return packed_panels(w) * linear_detail::panel_bytes(*type, w.shape[1] / kBlock);
}

void pack(const TensorView& w, int64_t begin, int64_t end, std::byte* out) {
  const auto type = block_type(w.dtype);
  SE_CHECK(avx512() && type && w.rank == 2 && begin >= 0 && end <= packed_panels(w),
           "pack: {} of {}",
           end,
           to_string(w));
  const int64_t blocks = w.shape[1] / kBlock, bytes = linear_detail::panel_bytes(*type, blocks);
  for (int64_t p = begin; p < end; ++p) {
    linear_detail::pack_panel(*type,
                              w.at<uint8_t>(p * kPanelRows),
                              w.stride[0],
                              std::min<int64_t>(kPanelRows, w.shape[0] - p * kPanelRows),
                              blocks,
                              reinterpret_cast<uint8_t*>(out) + p * bytes);
  }
}

void linear(
    const TensorView& x, std::span<const Product> products, Compute compute, Arena& scratch, Stream& stream) {
  for (const Product& p : products) check(x, p);
  if (x.shape[0] == 0) return;
  const auto in_blocks = [&](const Product& p) {
    return compute == Compute::kDefault && block_type(p.w.dtype);
  };
  const auto rounded = [&](const Product& p) {
    return compute == Compute::kDefault && p.w.dtype == DType::kBF16;
  };
  const auto in_panels = [&](const Product& p) { return in_blocks(p) && avx512() && p.w.packed != nullptr; };
  const Arena::Mark mark = scratch.mark();
  Activations a;
  if (std::any_of(products.begin(), products.end(), in_blocks)) a = quantise(x, scratch, stream);
  Rounded r;
  if (std::any_of(products.begin(), products.end(), rounded)) r = round(x, scratch, stream);
  if (std::any_of(products.begin(), products.end(), in_panels)) run_panels(products, a, scratch, stream);
  for (const Product& p : products) {
    if (in_panels(p)) continue;
    if (in_blocks(p))
      run_blocks(p, a, stream);
    else if (rounded(p))
      run_rounded(r, p, scratch, stream);
    else
      run_floats(x, p, scratch, stream);
  }
  scratch.rewind(mark);
}

void linear(const TensorView& x,
            const Weight& w,
            const TensorView& bias,
            const TensorView& y,
            Compute compute,
            Arena& scratch,
            Stream& stream) {
  const Product product{w, bias, y};
  linear(x, std::span(&product, 1), compute, scratch, stream);
}

}  // namespace se
