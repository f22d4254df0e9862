#include <cstring>

#include "base/half.h"
#include "kernels/quant/quant_routines.h"

namespace se::quant {
namespace {

inline float half_to_float(uint16_t h) { return f16_to_f32(h); }

inline void put(const int8_t* n, int count, float d, float* out) {
  for (int i = 0; i < count; ++i) out[i] = d * float(n[i]);
}

inline void put(const int8_t* n, int count, float d, float m, float* out) {
  for (int i = 0; i < count; ++i) out[i] = d * float(n[i]) + m;
}

// Sign, 4 bits of exponent (bias 7) and 3 of mantissa, moved up, are the f16 of 2^-8 times the value.
inline void put_f8(const uint8_t* codes, int count, float d, float* out) {
  for (int i = 0; i < count; ++i)
    out[i] = d * (256 * f16_to_f32(uint16_t((codes[i] & 0x80) << 8 | (codes[i] & 0x7f) << 7)));
}

#include "kernels/quant/dequantize.inl"

void from_f32(const void* data, int64_t n, float* out) {
  if (n > 0) std::memcpy(out, data, size_t(n) * sizeof(float));
}

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

Routines ref_routines() {
  Routines r = kBlocks;
  r.f32 = from_f32, r.f16 = from_f16, r.bf16 = from_bf16;
  return r;
}

}  // namespace se::quant
