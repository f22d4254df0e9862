// quest_avx2.cc -- the scores of units with AVX2. The bounds of a KV head are read and widened once for up to
// four query heads of its group; the sum of the positive and of the negative part run apart, so that eight
// multiply-adds are in flight.
#include <immintrin.h>

#include "sparse/read/quest/score.h"
//
#include "sparse/read/quest/ahead.inl"

namespace {

using se::quest::BoundsFormat;
using se::quest::Narrow;
using se::quest::SplitQuery;
using se::quest::UnitBounds;

template <Narrow kType>
inline __m256 load8(const char* p, int d) {
  if constexpr (kType == Narrow::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p) + d);
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 2 * d));
  if constexpr (kType == Narrow::kF16) return _mm256_cvtph_ps(h);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

inline float sum8(__m256 a) {  // ((0+1)+(2+3)) + ((4+5)+(6+7))
  const __m256 t = _mm256_hadd_ps(a, a), u = _mm256_hadd_ps(t, t);
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(u), _mm256_extractf128_ps(u, 1)));
}

// sums[r] for kRows query heads of one KV head.
template <Narrow kLo, Narrow kHi, bool kStep, int kRows>
inline void score_heads(
    const float* split, int dim, const char* lo, const char* hi, float levels, float* sums) {
  __m256 up[kRows], down[kRows];
  for (int r = 0; r < kRows; ++r) up[r] = down[r] = _mm256_setzero_ps();
  const __m256 top = _mm256_set1_ps(levels);
  for (int d = 0; d < dim; d += 8) {
    const __m256 low = load8<kLo>(lo, d);
    __m256 high = load8<kHi>(hi, d);
    if constexpr (kStep) high = _mm256_add_ps(low, _mm256_mul_ps(top, high));
    for (int r = 0; r < kRows; ++r) {
      const float* q = split + (r * dim + d) * 2;
      up[r] = _mm256_fmadd_ps(_mm256_loadu_ps(q), high, up[r]);
      down[r] = _mm256_fmadd_ps(_mm256_loadu_ps(q + 8), low, down[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) sums[r] = sum8(_mm256_add_ps(up[r], down[r]));
}

template <Narrow kLo, Narrow kHi, bool kStep>
float score(const SplitQuery& q, const BoundsFormat& f, const UnitBounds& b) {
  float best = 0;
  bool first = true;
  for (int h = 0; h < q.kv_heads; ++h) {
    const char *lo = b.lo + h * f.lo_stride, *hi = b.hi + h * f.hi_stride;
    for (int g = 0; g < q.group;) {
      const float* split = q.data + (int64_t(h) * q.group + g) * q.dim * 2;
      float sums[4];
      const int rows = q.group - g < 4 ? q.group - g : 4;
      if (rows == 4) score_heads<kLo, kHi, kStep, 4>(split, q.dim, lo, hi, f.levels, sums);
      if (rows == 3) score_heads<kLo, kHi, kStep, 3>(split, q.dim, lo, hi, f.levels, sums);
      if (rows == 2) score_heads<kLo, kHi, kStep, 2>(split, q.dim, lo, hi, f.levels, sums);
      if (rows == 1) score_heads<kLo, kHi, kStep, 1>(split, q.dim, lo, hi, f.levels, sums);
      for (int r = 0; r < rows; ++r) {
        best = first || sums[r] > best || sums[r] != sums[r] ? sums[r] : best;
        first = false;
      }
      g += rows;
    }
  }
  return best;
}

template <Narrow kLo, Narrow kHi, bool kStep>
void score_all(const SplitQuery& q, const BoundsFormat& f, const UnitBounds* units, int n, float* out) {
  for (int u = 0; u < kUnitsAhead && u < n; ++u) ask_for_bounds(q, f, units[u]);
  for (int i = 0; i < n; ++i) {
    if (i + kUnitsAhead < n) ask_for_bounds(q, f, units[i + kUnitsAhead]);
    out[i] = score<kLo, kHi, kStep>(q, f, units[i]);
  }
}

}  // namespace

#include "sparse/read/quest/by_type.inl"

namespace se::quest {

void score_units_avx2(
    const SplitQuery& q, const BoundsFormat& f, const UnitBounds* units, int n, float* out) {
  score_by_type(q, f, units, n, out);
}

}  // namespace se::quest
