// quest_avx512.cc -- the scores of units with AVX-512, to the bit those of quest_avx2.cc: the lower eight
// lanes sum the positive part over the upper bounds, the upper eight the negative part over the lower ones,
// as split_query lays the query out. Bounds are read and widened once for all query heads of a KV head, up to
// eight; two units share a query that is read once.
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 about its own _mm512_undefined_ps
#include <immintrin.h>

#include "sparse/read/quest/score.h"
//
#include "sparse/read/quest/ahead.inl"

namespace {

using se::quest::BoundsFormat;
using se::quest::Narrow;
using se::quest::SplitQuery;
using se::quest::UnitBounds;

inline __m512 join(__m256 a, __m256 b) { return _mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1); }

template <Narrow kType>
inline __m256 load8(const char* p, int d) {
  if constexpr (kType == Narrow::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p) + d);
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 2 * d));
  if constexpr (kType == Narrow::kF16) return _mm256_cvtph_ps(h);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

// Channels d .. d + 7: upper bounds, then lower ones.
template <Narrow kLo, Narrow kHi, bool kStep>
inline __m512 load_bounds(const char* lo, const char* hi, int d, __m256 levels) {
  if constexpr (kStep) {
    const __m256 low = load8<kLo>(lo, d);
    return join(_mm256_add_ps(low, _mm256_mul_ps(levels, load8<kHi>(hi, d))), low);
  }
  if constexpr (kLo == Narrow::kF32) return join(load8<kHi>(hi, d), load8<kLo>(lo, d));
  const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(hi + 2 * d));
  const __m256i both = _mm256_inserti128_si256(
      _mm256_castsi128_si256(high), _mm_loadu_si128(reinterpret_cast<const __m128i*>(lo + 2 * d)), 1);
  if constexpr (kLo == Narrow::kF16) return _mm512_cvtph_ps(both);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(both), 16));
}

inline __m512 pairs(__m512 a, __m512 b) {  // of each 128 bits: 0+1 and 2+3 of a, then of b
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}
// Of eight rows: upper and lower half lane by lane, then ((0+1)+(2+3)) + ((4+5)+(6+7)).
inline __m256 sums8(const __m512* x) {
  __m512 half[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    half[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x44),
                            _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xee));
  const __m512 fours = pairs(pairs(half[0], half[1]), pairs(half[2], half[3]));
  return _mm512_castps512_ps256(
      _mm512_add_ps(_mm512_shuffle_f32x4(fours, fours, 0x88), _mm512_shuffle_f32x4(fours, fours, 0xdd)));
}

// The largest so far by lane, and which lanes have met NaN.
struct Best {
  __m256 most = _mm256_set1_ps(-__builtin_inff());
  __mmask8 nan = 0;
  void add(__m256 x) {
    nan |= _mm256_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    most = _mm256_max_ps(most, x);
  }
  float get() const {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return nan ? __builtin_nanf("") : _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
};

// kRows query heads of one KV head with kUnits units.
template <Narrow kLo, Narrow kHi, bool kStep, int kRows, int kUnits>
inline void score_heads(const float* split,
                        int dim,
                        const UnitBounds* units,
                        int64_t lo_at,
                        int64_t hi_at,
                        float levels,
                        Best* best) {
  __m512 sum[kUnits][kRows];
#pragma GCC unroll 4
  for (int u = 0; u < kUnits; ++u) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[u][r] = _mm512_setzero_ps();
  }
  const __m256 top = _mm256_set1_ps(levels);
  for (int d = 0; d < dim; d += 8) {
    __m512 bounds[kUnits];
#pragma GCC unroll 4
    for (int u = 0; u < kUnits; ++u)
      bounds[u] = load_bounds<kLo, kHi, kStep>(units[u].lo + lo_at, units[u].hi + hi_at, d, top);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      __m512 q = _mm512_loadu_ps(split + (r * dim + d) * 2);
      asm("" : "+v"(q));  // once for all units: as an operand of each step it would be read for each
#pragma GCC unroll 4
      for (int u = 0; u < kUnits; ++u) sum[u][r] = _mm512_fmadd_ps(q, bounds[u], sum[u][r]);
    }
  }
#pragma GCC unroll 4
  for (int u = 0; u < kUnits; ++u) {
    __m512 x[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) x[r] = sum[u][r < kRows ? r : 0];
    best[u].add(sums8(x));
  }
}

template <Narrow kLo, Narrow kHi, bool kStep, int kUnits>
inline void score_some(const SplitQuery& q, const BoundsFormat& f, const UnitBounds* units, float* out) {
  Best best[kUnits];
  for (int h = 0; h < q.kv_heads; ++h) {
    for (int g = 0; g < q.group;) {
      const float* split = q.data + (int64_t(h) * q.group + g) * q.dim * 2;
      const int64_t lo = h * f.lo_stride, hi = h * f.hi_stride;
      const auto some = [&]<int kRows>() {
        score_heads<kLo, kHi, kStep, kRows, kUnits>(split, q.dim, units, lo, hi, f.levels, best);
        g += kRows;
      };
      switch (q.group - g) {
        case 1:
          some.template operator()<1>();
          break;
        case 2:
          some.template operator()<2>();
          break;
        case 3:
          some.template operator()<3>();
          break;
        case 4:
          some.template operator()<4>();
          break;
        case 5:
          some.template operator()<5>();
          break;
        case 6:
          some.template operator()<6>();
          break;
        case 7:
          some.template operator()<7>();
          break;
        default:
          some.template operator()<8>();
          break;
      }
    }
  }
  for (int u = 0; u < kUnits; ++u) out[u] = best[u].get();
}

template <Narrow kLo, Narrow kHi, bool kStep>
void score_all(const SplitQuery& q, const BoundsFormat& f, const UnitBounds* units, int n, float* out) {
  for (int u = 0; u < kUnitsAhead && u < n; ++u) ask_for_bounds(q, f, units[u]);
  int i = 0;
  for (; i + 2 <= n; i += 2) {
    for (int u = i + kUnitsAhead; u < i + kUnitsAhead + 2 && u < n; ++u) ask_for_bounds(q, f, units[u]);
    score_some<kLo, kHi, kStep, 2>(q, f, units + i, out + i);
  }
  if (i < n) score_some<kLo, kHi, kStep, 1>(q, f, units + i, out + i);
}

}  // namespace

#include "sparse/read/quest/by_type.inl"

namespace se::quest {

void score_units_avx512(
    const SplitQuery& q, const BoundsFormat& f, const UnitBounds* units, int n, float* out) {
  score_by_type(q, f, units, n, out);
}

}  // namespace se::quest
