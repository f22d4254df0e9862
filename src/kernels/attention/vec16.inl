// kernels/attention/vec16.inl -- sixteen floats in one AVX-512 register, and e^x of them. Text for
// *_avx512.cc and *_amx.cc files only: all of it has internal linkage, so that no baseline code can be linked
// to it.
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 about its own _mm512_undefined_ps
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

namespace {

using F16 = __m512;

constexpr float kMinusInf = -__builtin_inff();

inline F16 set16(float x) { return _mm512_set1_ps(x); }
inline F16 zero16() { return _mm512_setzero_ps(); }

// exp8.inl's exponential: the same bounds, the same polynomial, at most 2 ulp; exp16(0) is 1 exactly, 0 below
// -87.3, e^88 above 88, NaN stays.
inline F16 exp16(F16 x) {
  const F16 low = set16(-87.3f);
  const F16 c = _mm512_min_ps(set16(88.f), _mm512_max_ps(low, x));  // the second operand where x is NaN
  const F16 n =
      _mm512_roundscale_ps(_mm512_mul_ps(c, set16(1.44269504088896341f)), _MM_FROUND_TO_NEAREST_INT | 8);
  const F16 r = _mm512_fmadd_ps(n, set16(2.12194440e-4f), _mm512_fmadd_ps(n, set16(-0.693359375f), c));
  F16 p = set16(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, set16(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, set16(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, set16(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, set16(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, set16(5.0000001201e-1f));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, set16(1.f)));
  const __mmask16 kept = _mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(kept, p, n);
}
inline float exp1(float x) { return _mm512_cvtss_f32(exp16(set16(x))); }

}  // namespace
