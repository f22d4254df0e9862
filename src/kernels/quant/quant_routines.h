// kernels/quant/quant_routines.h -- the dequantisation routines of each instruction set (internal to this
// folder). Free of other headers of ours, so that the AVX2 file shares no inline function with the rest.
#pragma once
#include <cstdint>

namespace se::quant {

// out f32 [n] from n elements (whole blocks) at `data`; no alignment is assumed of `data`.
using DequantizeFn = void (*)(const void* data, int64_t n, float* out);

struct Routines {
  DequantizeFn f32 = nullptr, f16 = nullptr, bf16 = nullptr;
  DequantizeFn q4_0 = nullptr, q4_1 = nullptr, q5_0 = nullptr, q5_1 = nullptr, q8_0 = nullptr;
  DequantizeFn q2_k = nullptr, q3_k = nullptr, q4_k = nullptr, q5_k = nullptr, q6_k = nullptr;
  DequantizeFn f8_32 = nullptr;
};
Routines ref_routines();
Routines avx2_routines();

}  // namespace se::quant
