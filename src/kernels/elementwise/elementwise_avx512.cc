// As the AVX2 file, sixteen at a time.
#include <immintrin.h>

#include "kernels/elementwise/elementwise_routines.h"

namespace se::elementwise {
namespace {

inline __m512 exponential(__m512 x) {
  x = _mm512_min_ps(_mm512_set1_ps(kExpMax), x);  // in this order NaN passes
  x = _mm512_max_ps(_mm512_set1_ps(kExpMin), x);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(kLog2e)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2High), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2Low), r);
  __m512 p = _mm512_set1_ps(kTaylor[0]);
  for (int k = 1; k < 8; ++k) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kTaylor[k]));
  const __m512i power =
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
  return _mm512_mul_ps(p, _mm512_castsi512_ps(power));
}

// z / (1 + exp(-w)) * up
inline __m512 gated(__m512 z, __m512 w, __m512 up) {
  const __m512 negative = _mm512_xor_ps(w, _mm512_set1_ps(-0.0f));
  return _mm512_mul_ps(_mm512_div_ps(z, _mm512_add_ps(_mm512_set1_ps(1.0f), exponential(negative))), up);
}

struct Add {
  __m512 operator()(__m512 x, __m512 y) const { return _mm512_add_ps(x, y); }
};

struct Silu {
  __m512 operator()(__m512 z, __m512 up) const { return gated(z, z, up); }
};

struct Gelu {
  __m512 operator()(__m512 z, __m512 up) const {
    const __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(kGelu3), _mm512_set1_ps(kGelu1));
    return gated(z, _mm512_mul_ps(z, slope), up);
  }
};

template <typename Op>
void each(Op op, const float* x, const float* y, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(out + i, op(_mm512_loadu_ps(x + i), _mm512_loadu_ps(y + i)));
  if (i == n) return;
  const __mmask16 lanes = __mmask16((1u << (n - i)) - 1);
  const __m512 a = _mm512_maskz_loadu_ps(lanes, x + i), b = _mm512_maskz_loadu_ps(lanes, y + i);
  _mm512_mask_storeu_ps(out + i, lanes, op(a, b));
}

}  // namespace

void add_avx512(const float* x, const float* y, int64_t n, float* out) { each(Add{}, x, y, n, out); }

void silu_mul_avx512(const float* gate, const float* up, int64_t n, float* out) {
  each(Silu{}, gate, up, n, out);
}

void gelu_tanh_mul_avx512(const float* gate, const float* up, int64_t n, float* out) {
  each(Gelu{}, gate, up, n, out);
}

}  // namespace se::elementwise
