#include <immintrin.h>

#include "kernels/rmsnorm/rmsnorm_routines.h"

namespace se::rmsnorm {
namespace {

// All ones in the first n lanes, n <= 8 (masked loads read the others as zero, which leaves a sum as it is).
inline __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline float fold(__m256 low, __m256 high) {
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace

void row_avx2(const float* x, const float* w, float eps, int64_t dim, float* out) {
  __m256 low = _mm256_setzero_ps(), high = low;
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
    low = _mm256_fmadd_ps(a, a, low);
    high = _mm256_fmadd_ps(b, b, high);
  }
  if (const int64_t rest = dim - i; rest > 0) {
    const __m256 a = _mm256_maskload_ps(x + i, first_lanes(rest < 8 ? rest : 8));
    low = _mm256_fmadd_ps(a, a, low);
    if (rest > 8) {
      const __m256 b = _mm256_maskload_ps(x + i + 8, first_lanes(rest - 8));
      high = _mm256_fmadd_ps(b, b, high);
    }
  }
  const __m128 mean = _mm_set_ss(fold(low, high) / float(dim) + eps);
  const float scale = 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(mean));
  const __m256 scales = _mm256_set1_ps(scale);
  for (i = 0; i + 8 <= dim; i += 8) {
    const __m256 unit = _mm256_mul_ps(_mm256_loadu_ps(x + i), scales);
    _mm256_storeu_ps(out + i, _mm256_mul_ps(unit, _mm256_loadu_ps(w + i)));
  }
  for (; i < dim; ++i) out[i] = x[i] * scale * w[i];
}

}  // namespace se::rmsnorm
