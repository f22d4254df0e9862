// kernels/quant/quant.h -- blocks of weights (GGUF's: spec/models.md 8.2; kF8_32: 7.2) to f32.
#pragma once
#include <cstdint>

#include "device/tensor.h"

namespace se {

// out f32 [n] from n elements (whole blocks) at `blocks`; plain float types too. Bit-exact with the formulas
// of 8.2.
void dequantize(DType dtype, const void* blocks, int64_t n, float* out);
bool supports_dequantize(DType dtype);

}  // namespace se
