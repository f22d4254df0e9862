#include <immintrin.h>

#include "kernels/elementwise/elementwise_routines.h"

namespace se::elementwise {
namespace {

inline __m256 exponential(__m256 x) {
  x = _mm256_min_ps(_mm256_set1_ps(kExpMax), x);  // in this order NaN passes
  x = _mm256_max_ps(_mm256_set1_ps(kExpMin), x);
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(kLog2e)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2High), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2Low), r);
  __m256 p = _mm256_set1_ps(kTaylor[0]);
  for (int k = 1; k < 8; ++k) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kTaylor[k]));
  const __m256i power =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}

// z / (1 + exp(-w)) * up
inline __m256 gated(__m256 z, __m256 w, __m256 up) {
  const __m256 negative = _mm256_xor_ps(w, _mm256_set1_ps(-0.0f));
  return _mm256_mul_ps(_mm256_div_ps(z, _mm256_add_ps(_mm256_set1_ps(1.0f), exponential(negative))), up);
}

struct Silu {
  __m256 operator()(__m256 z, __m256 up) const { return gated(z, z, up); }
};

struct Gelu {
  __m256 operator()(__m256 z, __m256 up) const {
    const __m256 slope = _mm256_fmadd_ps(_mm256_mul_ps(z, z), _mm256_set1_ps(kGelu3), _mm256_set1_ps(kGelu1));
    return gated(z, _mm256_mul_ps(z, slope), up);
  }
};

inline __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

template <typename Op>
void each(Op op, const float* gate, const float* up, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, op(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
  if (i == n) return;
  const __m256i mask = first_lanes(n - i);
  _mm256_maskstore_ps(
      out + i, mask, op(_mm256_maskload_ps(gate + i, mask), _mm256_maskload_ps(up + i, mask)));
}

}  // namespace

void add_avx2(const float* x, const float* y, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
  for (; i < n; ++i) out[i] = x[i] + y[i];
}

void silu_mul_avx2(const float* gate, const float* up, int64_t n, float* out) {
  each(Silu{}, gate, up, n, out);
}

void gelu_tanh_mul_avx2(const float* gate, const float* up, int64_t n, float* out) {
  each(Gelu{}, gate, up, n, out);
}

}  // namespace se::elementwise
