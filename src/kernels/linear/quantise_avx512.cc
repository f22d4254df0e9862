// Quantising activations sixteen blocks at a time, those of a group's tokens or, of a single token, following
// ones: what is written lies together, and the scales are one register.
#include <immintrin.h>

#include "kernels/linear/packed.h"

namespace se::linear_detail {
namespace {

inline __m512i magnitude(const float* p) {
  return _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(0x7fffffff));
}

// The bits of the greatest |v| of 32: they order as the values do, with NaN above all.
inline int greatest(const float* p) {
  const __m512i top = _mm512_max_epi32(magnitude(p), magnitude(p + 16));
  const __m256i eight = _mm256_max_epi32(_mm512_castsi512_si256(top), _mm512_extracti64x4_epi64(top, 1));
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

inline __m128i sixteen(const float* p, __m512 inverse) {
  return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(p), inverse)));
}

// Writes 32 values; the sums of their quarters of 8: lanes 0 .. 3 of the first 16, lanes 4 .. 7 of the rest.
inline __m256i quantise_block(const float* p, float inverse, int8_t* to) {
  const __m512 scale = _mm512_set1_ps(inverse);
  const __m256i q = _mm256_set_m128i(sixteen(p + 16, scale), sixteen(p, scale));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), q);
  return _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), q);
}

// n <= 16 blocks of x, `stride` floats apart, to places from `at` on.
void group(const float* x, int64_t stride, int64_t n, const Activations& a, int64_t at) {
  alignas(64) int32_t top[kGroup] = {};
  alignas(64) float inverse[kGroup];
  alignas(64) int32_t sums[2][kGroup];
  for (int64_t t = 0; t < n; ++t) top[t] = greatest(x + t * stride);
  const __m512 amax = _mm512_castsi512_ps(_mm512_load_si512(top));
  const __mmask16 some = _mm512_cmp_ps_mask(amax, _mm512_set1_ps(kTiny), _CMP_NLT_UQ);  // and NaN
  const __m512 full = _mm512_set1_ps(127.0f), d = _mm512_maskz_div_ps(some, amax, full);
  _mm512_store_ps(inverse, _mm512_maskz_div_ps(some, full, amax));
  for (int64_t first = 0; first < n; first += 4) {
    __m256i quarters[4];
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t t = first + i;
      quarters[i] = t < n ? quantise_block(x + t * stride, inverse[t], a.q + (at + t) * kBlock)
                          : _mm256_setzero_si256();
    }
    const __m256i four = _mm256_hadd_epi32(_mm256_hadd_epi32(quarters[0], quarters[1]),
                                           _mm256_hadd_epi32(quarters[2], quarters[3]));
    _mm_store_si128(reinterpret_cast<__m128i*>(sums[0] + first), _mm256_castsi256_si128(four));
    _mm_store_si128(reinterpret_cast<__m128i*>(sums[1] + first), _mm256_extracti128_si256(four, 1));
  }
  const __mmask16 lanes = __mmask16((1u << n) - 1);
  const __m512i half = _mm512_load_si512(sums[0]), sum = _mm512_add_epi32(half, _mm512_load_si512(sums[1]));
  _mm512_mask_storeu_ps(a.d + at, lanes, d);
  _mm512_mask_storeu_ps(a.dsum + at, lanes, _mm512_mul_ps(d, _mm512_cvtepi32_ps(sum)));
  _mm512_mask_storeu_epi32(a.sum + at, lanes, sum);
  _mm512_mask_storeu_epi32(a.half + at, lanes, half);
}

}  // namespace

void quantise_avx512(const float* x, int64_t begin, int64_t end, const Activations& a) {
  const int64_t stride = a.blocks * kBlock;
  for (int64_t first = begin; first < end; first += kGroup) {
    const int64_t n = group_tokens(a, first), at = place(a, first, 0);
    const float* rows = x + first * stride;
    if (n == 1) {
      for (int64_t b = 0; b < a.blocks; b += kGroup)
        group(rows + b * kBlock, kBlock, a.blocks - b < kGroup ? a.blocks - b : kGroup, a, at + b);
    } else {
      for (int64_t b = 0; b < a.blocks; ++b) group(rows + b * kBlock, stride, n, a, at + b * n);
    }
  }
}

}  // namespace se::linear_detail
