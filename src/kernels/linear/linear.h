// kernels/linear/linear.h -- y[t, o] = sum_i w[o, i] x[t, i] + bias[o]: every projection of a model.
#pragma once
#include "device/device.h"

namespace se {

// kDefault: quantised weights are used as they lie, against activations quantised per block of 32 (int8,
// integer dot products); kExact: weights dequantised to F32 on the fly, f32 products (the reference numerics
// of a checkpoint).
enum class Compute : uint8_t { kDefault, kExact };

//   x     f32 [tokens, in], contiguous;  w [out, in] (f32, f16, bf16 or a GGUF block type), rows contiguous
//   bias  f32 [out], or empty;           y f32 [tokens, out], contiguous, no alias
// A row of y depends on that row of x alone: neither on the number of tokens nor on threads (one dot-product
// routine per level and weight type serves GEMV and GEMM). `in` must be whole blocks of w. Unsupported
// dtypes: see supports_linear.
void linear(const TensorView& x,
            const TensorView& w,
            const TensorView& bias,
            const TensorView& y,
            Compute compute,
            Arena& scratch,
            Stream& stream);
bool supports_linear(DType w);

}  // namespace se
