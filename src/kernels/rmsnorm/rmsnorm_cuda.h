// kernels/rmsnorm/rmsnorm_cuda.h -- residual sum and RMSNorm in one pass on CUDA:
//   sum = x + add;  out[t, d] = sum[t, d] * w[d] / sqrt(mean_d(sum[t, d]^2) + eps)
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace se::cuda {

class Stream;

struct NormParams {
  const float* x = nullptr;    // f32 [rows, k], k a multiple of 4
  const float* add = nullptr;  // f32 [rows, k], or null
  float* sum = nullptr;        // f32 [rows, k], may be x; null: not kept
  const float* w = nullptr;    // f32 [k]
  float eps = 0;
  int rows = 0, k = 0;
  float* out = nullptr;               // any of the three: f32, may be x;
  __half* out16 = nullptr;            // as halves;
  __nv_bfloat16* out_bf16 = nullptr;  // as BF16
};
void add_rms_norm(const NormParams& params, Stream& stream);

}  // namespace se::cuda
