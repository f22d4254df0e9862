// restore_avx2.cc -- decoding with AVX2: eight codes are one shift of a broadcast word by eight counts.
#include <immintrin.h>

#include "sparse/store/kivi/restore.h"

namespace {

using se::kivi::Coded;
using se::kivi::MinType;

template <int kBits>
inline __m256 codes8(const uint8_t* codes) {
  uint32_t word = 0;
  __builtin_memcpy(&word, codes, kBits);  // 8 codes of kBits bits are kBits bytes
  const __m256i counts =
      _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(kBits));
  const __m256i all = _mm256_srlv_epi32(_mm256_set1_epi32(int(word)), counts);
  return _mm256_cvtepi32_ps(_mm256_and_si256(all, _mm256_set1_epi32((1 << kBits) - 1)));
}
inline __m256 halves8(const void* p, int64_t i) {
  return _mm256_cvtph_ps(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(p) + i)));
}
inline __m256 mins8(const Coded& c, int64_t i) {
  if (c.min_type == MinType::kF32) return _mm256_loadu_ps(static_cast<const float*>(c.min) + i);
  if (c.min_type == MinType::kF16) return halves8(c.min, i);
  const auto* p = reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(c.min) + i);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
inline float min1(const Coded& c, int64_t i) {
  if (c.min_type == MinType::kF32) return static_cast<const float*>(c.min)[i];
  const uint16_t h = static_cast<const uint16_t*>(c.min)[i];
  if (c.min_type == MinType::kF16) return _cvtsh_ss(h);
  return __builtin_bit_cast(float, uint32_t(h) << 16);
}
inline __m256 restored(__m256 low, __m256 codes, __m256 step) {
  return _mm256_add_ps(low, _mm256_mul_ps(codes, step));
}

template <int kBits>
void keys_of(const Coded& c, float* out, int64_t stride) {
  const int row = c.dim * kBits / 8;
  for (int d = 0; d < c.dim; d += 8) {
    const __m256 low = mins8(c, d), step = halves8(c.scale, d);
    for (int t = 0; t < c.n; ++t)
      _mm256_storeu_ps(out + t * stride + d,
                       restored(low, codes8<kBits>(c.codes + t * row + d * kBits / 8), step));
  }
}
template <int kBits>
void values_of(const Coded& c, float* out, int64_t stride) {
  const int row = c.dim * kBits / 8, groups = c.dim / c.group;
  for (int t = 0; t < c.n; ++t) {
    for (int d = 0; d < c.dim; d += 8) {
      const int64_t g = int64_t(t) * groups + d / c.group;
      const __m256 low = _mm256_set1_ps(min1(c, g)), step = _mm256_set1_ps(_cvtsh_ss(c.scale[g]));
      _mm256_storeu_ps(out + t * stride + d,
                       restored(low, codes8<kBits>(c.codes + t * row + d * kBits / 8), step));
    }
  }
}

void keys(const Coded& c, float* out, int64_t stride) {
  return c.bits == 4 ? keys_of<4>(c, out, stride) : keys_of<2>(c, out, stride);
}
void values(const Coded& c, float* out, int64_t stride) {
  return c.bits == 4 ? values_of<4>(c, out, stride) : values_of<2>(c, out, stride);
}

}  // namespace

namespace se::kivi {

const Restore kRestoreAvx2 = {keys, values};

}  // namespace se::kivi
