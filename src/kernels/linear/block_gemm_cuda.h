// kernels/linear/block_gemm_cuda.h -- matrix products over FP8 blocks for prompts on CUDA, dense or grouped
// (one matrix of weights a group of rows: the experts of a sparse MLP), as the DeepSeek-V3 recipe computes
// them (spec/models.md 7.2): weights E4M3 in blocks of 128 x 128 with one f32 factor each, activations E4M3
// with one factor a row and 128 of k, 128 of k summed on the tensor cores and added up in f32.
//
//   y[r, o] = sum over blocks b of k: w_scale[o / 128, b] x_scale[b, r] sum_i w[o, i] x[r, i], w of r's group
//
// Rounding: tensor cores keep about 14 bits of the sum over 128 of k (2^-13 of its largest term and partial
// sum, each 32 of k); the rest is f32. A row's result depends on that row and its weights only, bit for bit.
#pragma once
#include <cstdint>

namespace se::cuda {

class Stream;

#ifdef __CUDACC__
#define SE_BOTH __host__ __device__
#else
#define SE_BOTH
#endif
// Activation factors: rows of so many numbers, so that each begins at a multiple of 16 bytes.
SE_BOTH constexpr int64_t block_pitch(int64_t rows) { return (rows + 3) / 4 * 4; }
#undef SE_BOTH

struct BlockGemmParams {
  const uint8_t* w = nullptr;      // E4M3 [groups, n, k], 16-byte aligned
  const float* w_scale = nullptr;  // f32 [groups, ceil(n / 128), k / 128]
  const uint8_t* x = nullptr;      // E4M3 [rows, k], 16-byte aligned; rows of a group together
  const float* x_scale = nullptr;  // f32 [k / 128, block_pitch(rows)]
  const int32_t* first =
      nullptr;  // i32 [groups + 1] on the device: group g has rows first[g] .. first[g + 1]
  int groups = 1, n = 0,
      k = 0;     // k a multiple of 128, n of 8 (of 256 with `product`); null `first`: one group
  int rows = 0;  // of all groups
  // One of these; none overlaps an input.
  void* y16 = nullptr;              // BF16 [rows, n]
  float* y = nullptr;               // f32 [rows, n] = residual + result
  const float* residual = nullptr;  // f32 [rows, n], may be y; null: none
  // The n outputs are gate over up: silu(gate) * up, rounded to BF16, then to E4M3 as `x` is.
  uint8_t* product = nullptr;      // E4M3 [rows, n / 2]
  float* product_scale = nullptr;  // f32 [n / 2 / 128, block_pitch(rows)]
};
void block_gemm(const BlockGemmParams& params, Stream& stream);

// Rows as block_gemm takes them: x [rows, k] times norm[i] / rms if `norm` is set, in E4M3 with the factor
// (greatest size of 128 of k) / 448 (2^-126 at least). k a multiple of 128.
struct BlockQuantiseParams {
  const float* x = nullptr;     // f32 [rows, k]
  const float* norm = nullptr;  // f32 [k]
  float eps = 0;
  int rows = 0, k = 0;
  const int32_t* place = nullptr;  // i32 [rows, copies]: where row r goes, `copies` times; null: to r
  int copies = 1, out_rows = 0;    // rows of codes and scale (with null `place`: rows)
  uint8_t* codes = nullptr;        // E4M3 [out_rows, k]
  float* scale = nullptr;          // f32 [k / 128, block_pitch(out_rows)]
};
void block_quantise(const BlockQuantiseParams& params, Stream& stream);

}  // namespace se::cuda
