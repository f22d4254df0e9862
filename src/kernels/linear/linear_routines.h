// kernels/linear/linear_routines.h -- the routines behind linear(), per instruction set (internal to this
// folder).
//
// Both levels define a dot product by its order alone, so that any tile, thread or instruction set gives the
// same bits:
//   blocks (kDefault, Q4_0, Q4_1, Q5_0, Q8_0, Q4_K): x is quantised per block of 32 to q = round(127 x /
//   amax), d = amax / 127.
//     acc = 0; for each block in order: acc = fma(m_w, d_x * sum q_x, acc) where the type has a minimum, then
//     acc = fma(d_w * d_x, float(sum q_w q_x), acc), the sum an exact integer. Q4_0 and Q5_0 are such
//     types with m_w = -8 d_w and -16 d_w; Q4_K gives each 32 values d_w = d scale and m_w = -dmin min.
//   floats (all else): lane l of 16 sums w[i] x[i], i % 16 = l, in order with fused steps; lanes fold by
//   halves
//     (l + 8, l + 4, l + 2, l + 1).
// The bias is added last. Free of other headers of ours, so that the AVX2 files share no inline function with
// the rest.
#pragma once
#include <cstdint>

namespace se::linear_detail {

inline constexpr int kBlock = 32;       // elements of a block of weights and activations
inline constexpr int kMaxTokens = 128;  // of one call of block_rows
inline constexpr float kTiny =
    1e-30f;  // blocks of activations below it count as zero (127 / amax would overflow)

// Block-major, so that one block of weights meets all tokens in a row of memory.
struct Activations {
  int64_t tokens = 0, blocks = 0;
  int8_t* q = nullptr;     // [blocks, tokens, 32], in [-127, 127]
  float* d = nullptr;      // [blocks, tokens]; NaN where a value was NaN
  float* dsum = nullptr;   // [blocks, tokens] d * sum(q)
  int32_t* sum = nullptr;  // [blocks, tokens] sum(q)
};

enum class BlockType : uint8_t { kQ4_0, kQ4_1, kQ5_0, kQ8_0, kQ4_K };

struct Rows {
  const void* data = nullptr;  // row 0 of the matrix
  int64_t stride = 0;          // bytes
  int64_t begin = 0, end = 0;  // the rows to do
};

struct Output {
  float* y = nullptr;  // [tokens, out]
  int64_t out = 0;
  const float* bias = nullptr;  // [out] or null
};

struct Routines {
  // Tokens [begin, end) of x f32 [tokens, in].
  void (*quantise)(const float* x, int64_t begin, int64_t end, const Activations& a);
  // y[begin_token..end_token, rows]; at most kMaxTokens of them.
  void (*block_rows)(
      BlockType type, const Rows& w, const Activations& x, int64_t begin, int64_t end, const Output& y);
  // w.data is f32 row w.begin (not row 0): the caller has dequantised [begin, end) only. x f32 [tokens, in].
  void (*float_rows)(const Rows& w, const float* x, int64_t tokens, int64_t in, const Output& y);
};

const Routines& ref_routines();
const Routines& avx2_routines();

}  // namespace se::linear_detail
