// kernels/linear/linear_routines.h -- the routines behind linear(), per instruction set (internal to this
// folder).
//
// All levels define a dot product by its order alone, so that any tile, thread or instruction set gives the
// same bits:
//   blocks (kDefault, Q4_0 to Q8_0, Q2_K to Q6_K): x is quantised per block of 32 to q = round(127 x
//   / amax), d = amax / 127.
//     acc = 0; for each block in order: acc = fma(m_w, d_x * sum q_x, acc) where the type has a minimum, then
//     acc = fma(d_w * d_x, float(s), acc), s = sum q_w q_x an exact integer. Q4_K and Q5_K give each 32
//     values d_w = d scale and m_w = -dmin min. Q2_K, Q3_K and Q6_K have a scale for each 16: s = scale0 s0 +
//     scale1 s1, |s| < 2^24. Q2_K has a minimum for each 16 too, the first step being acc = fma(-dmin d_x,
//     min0 x0 + min1 x1, acc), x0 and x1 the sums of q_x, exact integers. Stored codes are u = q_w + offset
//     (see below): s = sum u q_x - offset sum q_x.
//   floats (all else): lane l of 16 sums w[i] x[i], i % 16 = l, in order with fused steps; lanes fold by
//   halves
//     (l + 8, l + 4, l + 2, l + 1).
//   rounded (kDefault, BF16): x is rounded to BF16. Both rows are parted into 32 elements, beyond `in` zeros;
//   lane l
//     of 16 adds the product of elements 2 l + 1 of each part, then that of 2 l, with fused steps; lanes fold
//     as of floats. So these are the products of floats of rows whose parts have the odd elements first.
// The bias is added last. Free of other headers of ours, so that the files of an instruction set share no
// inline function with the rest.
#pragma once
#include <cstdint>

namespace se::linear_detail {

inline constexpr int kBlock = 32;       // elements of a block of weights and activations
inline constexpr int kMaxTokens = 128;  // of one call of block_rows
inline constexpr float kTiny =
    1e-30f;  // blocks of activations below it count as zero (127 / amax would overflow)

// Groups of 16 tokens (the last may have fewer), each block by block: one block of weights meets the tokens
// of a group in a row of memory, and a group lies together whatever the number of tokens.
inline constexpr int kGroup = 16;
struct Activations {
  int64_t tokens = 0, blocks = 0;
  int8_t* q = nullptr;      // 32 at each place, in [-127, 127]
  float* d = nullptr;       // NaN where a value was NaN
  float* dsum = nullptr;    // d * sum(q)
  int32_t* sum = nullptr;   // sum(q)
  int32_t* half = nullptr;  // sum of the first 16 of them
};

// Tokens of the group that begins with `first`.
static inline int64_t group_tokens(const Activations& a, int64_t first) {
  return a.tokens - first < kGroup ? a.tokens - first : kGroup;
}
// Where block b of a token lies; that of the next block is group_tokens further.
static inline int64_t place(const Activations& a, int64_t token, int64_t b) {
  const int64_t first = token / kGroup * kGroup;
  return first * a.blocks + b * group_tokens(a, first) + token - first;
}

enum class BlockType : uint8_t { kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K };

// What codes u >= 0 are above the values; types with minima have none.
static constexpr int offset_of(BlockType type) {
  return type == BlockType::kQ4_0   ? 8
         : type == BlockType::kQ5_0 ? 16
         : type == BlockType::kQ8_0 ? 128
         : type == BlockType::kQ3_K ? 4
         : type == BlockType::kQ6_K ? 32
                                    : 0;
}
static constexpr bool has_minimum(BlockType type) { return offset_of(type) == 0 && type != BlockType::kQ2_K; }
// A minimum for each half of a block.
static constexpr bool has_minima(BlockType type) { return type == BlockType::kQ2_K; }
// Codes of five bits, the fifth apart from the nibble.
static constexpr bool has_fifth_bits(BlockType type) {
  return type == BlockType::kQ5_0 || type == BlockType::kQ5_1 || type == BlockType::kQ5_K;
}
// A scale for each half of a block.
static constexpr bool scales_halves(BlockType type) {
  return type == BlockType::kQ2_K || type == BlockType::kQ3_K || type == BlockType::kQ6_K;
}

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

inline constexpr int kPart = 32;  // elements of a part of rounded rows
static constexpr int64_t rounded_stride(int64_t in) { return (in + kPart - 1) / kPart * kPart; }

// Rounded activations: BF16 as they come, or F32 with the parts' odd elements first, as the routine wants
// them.
struct Rounded {
  const void* x = nullptr;  // [tokens, stride]
  int64_t tokens = 0, in = 0, stride = 0;
};
void round_token(const float* x, int64_t in, uint16_t* to);  // to [rounded_stride(in)]
// BF16 row [in] (at any address) as F32 [rounded_stride(in)] in parts, odd elements first.
void part_row(const void* row, int64_t in, float* to);

struct Routines {
  // Tokens [begin, end) of x f32 [tokens, in], whole groups.
  void (*quantise)(const float* x, int64_t begin, int64_t end, const Activations& a);
  // y[begin_token..end_token, rows]; at most kMaxTokens of them, from the beginning of a group.
  void (*block_rows)(
      BlockType type, const Rows& w, const Activations& x, int64_t begin, int64_t end, const Output& y);
  // w.data is f32 row w.begin (not row 0): the caller has dequantised [begin, end) only. x f32 [tokens, in].
  void (*float_rows)(const Rows& w, const float* x, int64_t tokens, int64_t in, const Output& y);
};

const Routines& ref_routines();
const Routines& avx2_routines();  // of AVX-512 and AMX too, for weights that are not packed

}  // namespace se::linear_detail
