#include "kernels/linear/linear.h"

#include <algorithm>
#include <optional>

#include "device/cpu/isa.h"
#include "device/cpu/thread_pool.h"
#include "kernels/linear/linear_routines.h"
#include "kernels/quant/quant.h"

namespace se {
namespace {

using linear_detail::Activations;
using linear_detail::BlockType;
using linear_detail::kBlock;
using linear_detail::kMaxTokens;
using linear_detail::Output;
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
    case DType::kQ8_0:
      return BlockType::kQ8_0;
    case DType::kQ4_K:
      return BlockType::kQ4_K;
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

Activations quantise(const TensorView& x, const Routines& r, Arena& scratch, Stream& stream) {
  Activations a;
  a.tokens = x.shape[0], a.blocks = x.shape[1] / kBlock;
  const int64_t n = a.tokens * a.blocks;
  a.q = scratch.take<int8_t>(n * kBlock).data();
  a.d = scratch.take<float>(n).data();
  a.dsum = scratch.take<float>(n).data();
  a.sum = scratch.take<int32_t>(n).data();
  constexpr int64_t kRows = 8;
  stream.pool().run(ceil_div(a.tokens, kRows), [&](int64_t item, int) {
    r.quantise(x.ptr<float>(), item * kRows, std::min(a.tokens, (item + 1) * kRows), a);
  });
  return a;
}

void run_blocks(const TensorView& x, const TensorView& w, const Output& y, Arena& scratch, Stream& stream) {
  const Routines& r = routines();
  const BlockType type = *block_type(w.dtype);
  const Activations a = quantise(x, r, scratch, stream);
  const int64_t out = w.shape[0], in = w.shape[1], tokens = a.tokens;
  const int64_t step = rows_per_item(out, bytes_of(w.dtype, in), tokens, stream.pool().threads());
  constexpr int64_t kChunkBytes =
      192 << 10;  // of quantised tokens, which all tiles of an item read again: half an L2
  const int64_t chunk = std::clamp<int64_t>(kChunkBytes / in / 8 * 8, 32, kMaxTokens);
  stream.pool().run(ceil_div(out, step), [&](int64_t item, int) {
    const Rows rows{w.data, w.stride[0], item * step, std::min(out, (item + 1) * step)};
    for (int64_t t = 0; t < tokens; t += chunk)
      r.block_rows(type, rows, a, t, std::min(tokens, t + chunk), y);
  });
}

void run_floats(const TensorView& x, const TensorView& w, const Output& y, Arena& scratch, Stream& stream) {
  const Routines& r = routines();
  const int64_t out = w.shape[0], in = w.shape[1], tokens = x.shape[0], threads = stream.pool().threads();
  constexpr int64_t kTileFloats = 32768;  // of dequantised weights: a quarter of an L2
  const int64_t step = std::clamp<int64_t>(kTileFloats / in / 4 * 4, 4, 32);
  const bool plain = w.dtype == DType::kF32;
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
    r.float_rows(rows, x.ptr<float>(), tokens, in, y);
  });
}

}  // namespace

bool supports_linear(DType w) { return supports_dequantize(w); }

void linear(const TensorView& x,
            const TensorView& w,
            const TensorView& bias,
            const TensorView& y,
            Compute compute,
            Arena& scratch,
            Stream& stream) {
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
  if (x.shape[0] == 0) return;
  const Output output{y.ptr<float>(), out, bias.empty() ? nullptr : bias.ptr<float>()};
  const Arena::Mark mark = scratch.mark();
  const bool blocks = compute == Compute::kDefault && block_type(w.dtype);
  (blocks ? run_blocks : run_floats)(x, w, output, scratch, stream);
  scratch.rewind(mark);
}

}  // namespace se
