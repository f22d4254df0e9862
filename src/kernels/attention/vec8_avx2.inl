// kernels/attention/vec8_avx2.inl -- eight floats in one AVX2 register. Text for *_avx2.cc files only: all of
// it has internal linkage, so that no baseline code can be linked to it. Twin: vec8_baseline.inl.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

namespace {

using F8 = __m256;

inline F8 zero8() { return _mm256_setzero_ps(); }
inline F8 set8(float x) { return _mm256_set1_ps(x); }
inline F8 load8(const float* p) { return _mm256_loadu_ps(p); }
inline void store8(float* p, F8 x) { _mm256_storeu_ps(p, x); }
inline F8 load8_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline F8 load8_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline F8 add8(F8 a, F8 b) { return _mm256_add_ps(a, b); }
inline F8 sub8(F8 a, F8 b) { return _mm256_sub_ps(a, b); }
inline F8 mul8(F8 a, F8 b) { return _mm256_mul_ps(a, b); }
inline F8 div8(F8 a, F8 b) { return _mm256_div_ps(a, b); }
inline F8 fma8(F8 a, F8 b, F8 c) { return _mm256_fmadd_ps(a, b, c); }
inline F8 max8(F8 a, F8 b) { return _mm256_max_ps(a, b); }  // b where either is NaN
inline F8 min8(F8 a, F8 b) { return _mm256_min_ps(a, b); }  // b where either is NaN
inline F8 round8(F8 a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F8 pow2_8(F8 n) {  // 2^n for whole n in [-126, 127]
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline F8 zero_below8(F8 y, F8 x, F8 floor) {  // y, but 0 where x < floor
  return _mm256_andnot_ps(_mm256_cmp_ps(x, floor, _CMP_LT_OQ), y);
}

// Sums of the lanes of four vectors, each ((0+1)+(2+3)) + ((4+5)+(6+7)).
inline void store_sums4(float* out, F8 a, F8 b, F8 c, F8 d) {
  const F8 t = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1)));
}
inline float sum8(F8 a) {
  const F8 t = _mm256_hadd_ps(a, a), u = _mm256_hadd_ps(t, t);
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(u), _mm256_extractf128_ps(u, 1)));
}
inline float largest8(F8 a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
inline float log1(float x) { return __builtin_logf(x); }

}  // namespace
