// bench/kbench/reference.h -- slow twins in double on the device: one obvious loop each, nothing shared with
// the kernels under test. The formulas are those of the CPU code (store/fp8, store/kivi, kernels/attention).
#pragma once
#include <cstdint>

#include "device/cuda/stream.h"
#include "kernels/attention/decode_params_cuda.h"

namespace se::kbench {

// out [tokens, q_heads, dim], lse [tokens, q_heads] (-inf where nothing is seen) of every listed row;
// scratch doubles [listed rows * q_heads, places]. places: the most of a row, its present included.
void reference_attention(const cuda::DecodeParams& p,
                         cuda::DecodeType type,
                         int dim,
                         int listed,
                         int64_t places,
                         double* scratch,
                         double* out,
                         double* lse,
                         cuda::Stream& stream);

// out [rows, n] = sum_k w[n, k] * x[rows, k], and the sum of the terms' sizes. w: E4M3 with scales
// [n / 128, k / 128], or BF16 (scale null).
void reference_linear(const void* w,
                      const float* scale,
                      int n,
                      int k,
                      const float* x,
                      int rows,
                      double* out,
                      double* size,
                      cuda::Stream& stream);

}  // namespace se::kbench
