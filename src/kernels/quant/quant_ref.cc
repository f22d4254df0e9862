#include <cstring>

#include "base/half.h"
#include "kernels/quant/quant_routines.h"

namespace se::quant {
namespace {

inline float half_to_float(uint16_t h) { return f16_to_f32(h); }

#include "kernels/quant/dequantize.inl"

void from_f32(const void* data, int64_t n, float* out) { std::memcpy(out, data, size_t(n) * sizeof(float)); }

void from_f16(const void* data, int64_t n, float* out) {
  const uint8_t* b = static_cast<const uint8_t*>(data);
  for (int64_t i = 0; i < n; ++i) out[i] = half_at(b + 2 * i);
}

void from_bf16(const void* data, int64_t n, float* out) {
  const uint8_t* b = static_cast<const uint8_t*>(data);
  for (int64_t i = 0; i < n; ++i) {
    uint16_t h;
    std::memcpy(&h, b + 2 * i, 2);
    out[i] = bf16_to_f32(h);
  }
}

}  // namespace

DequantizeFn ref_routine(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return from_f32;
    case DType::kF16:
      return from_f16;
    case DType::kBF16:
      return from_bf16;
    default:
      return block_routine(dtype);
  }
}

}  // namespace se::quant
