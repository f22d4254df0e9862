// The block formats of dequantize.inl with AVX2 for the widening, and the half types.
#include <immintrin.h>

#include <cstring>

#include "kernels/quant/quant_routines.h"

namespace se::quant {
namespace {

inline float half_to_float(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }

inline __m256 widen(const int8_t* n) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(n))));
}

inline void put(const int8_t* n, int count, float d, float* out) {
  const __m256 scale = _mm256_set1_ps(d);
  for (int i = 0; i < count; i += 8) _mm256_storeu_ps(out + i, _mm256_mul_ps(scale, widen(n + i)));
}

inline void put(const int8_t* n, int count, float d, float m, float* out) {
  const __m256 scale = _mm256_set1_ps(d), offset = _mm256_set1_ps(m);
  for (int i = 0; i < count; i += 8)
    _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_mul_ps(scale, widen(n + i)), offset));
}

// As in quant_ref.cc, by way of f16.
inline void put_f8(const uint8_t* codes, int count, float d, float* out) {
  const __m256 scale = _mm256_set1_ps(d), up = _mm256_set1_ps(256);
  for (int i = 0; i < count; i += 8) {
    const __m128i c = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i)));
    const __m128i sign = _mm_slli_epi16(_mm_and_si128(c, _mm_set1_epi16(0x80)), 8);
    const __m128i half = _mm_or_si128(sign, _mm_slli_epi16(_mm_and_si128(c, _mm_set1_epi16(0x7f)), 7));
    _mm256_storeu_ps(out + i, _mm256_mul_ps(scale, _mm256_mul_ps(up, _mm256_cvtph_ps(half))));
  }
}

#include "kernels/quant/dequantize.inl"

void from_f32(const void* data, int64_t n, float* out) {
  if (n > 0) std::memcpy(out, data, size_t(n) * sizeof(float));
}

void from_f16(const void* data, int64_t n, float* out) {
  const uint8_t* b = static_cast<const uint8_t*>(data);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 2 * i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(h));
  }
  for (; i < n; ++i) out[i] = half_at(b + 2 * i);
}

void from_bf16(const void* data, int64_t n, float* out) {
  const uint8_t* b = static_cast<const uint8_t*>(data);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 2 * i));
    _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)));
  }
  for (; i < n; ++i) {
    const uint32_t bits = uint32_t(b[2 * i] | b[2 * i + 1] << 8) << 16;
    std::memcpy(out + i, &bits, 4);
  }
}

}  // namespace

Routines avx2_routines() {
  Routines r = kBlocks;
  r.f32 = from_f32, r.f16 = from_f16, r.bf16 = from_bf16;
  return r;
}

}  // namespace se::quant
