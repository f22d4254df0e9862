// kernels/quant/quant_routines.h -- the dequantisation routines of each instruction set (internal to this
// folder).
#pragma once
#include <cstdint>

#include "device/tensor.h"

namespace se::quant {

// out f32 [n] from n elements (whole blocks) at `data`; no alignment is assumed of `data`.
using DequantizeFn = void (*)(const void* data, int64_t n, float* out);

// Null where dequantize does not take the type.
DequantizeFn ref_routine(DType dtype);
DequantizeFn avx2_routine(DType dtype);

}  // namespace se::quant
