// Quantising activations, and products of f32 rows: a tile of rows x tokens shares its loads; each product
// keeps its own sixteen lanes (two registers), so that its order is the reference's whatever the tile.
#include <immintrin.h>

#include "kernels/linear/linear_avx2.h"

namespace se::linear_detail::avx2 {
namespace {

inline __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline float fold(__m256 low, __m256 high) {
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

template <int kRows, int kTokens>
struct Sums {
  __m256 lane[kRows][kTokens][2];
};

template <int kRows, int kTokens, typename Load>
inline void step(
    Sums<kRows, kTokens>& s, const float* const* w, const float* const* x, int64_t i, int half, Load load) {
  __m256 a[kRows];
  for (int r = 0; r < kRows; ++r) a[r] = load(w[r] + i + 8 * half);
  for (int t = 0; t < kTokens; ++t) {
    __m256 b = load(x[t] + i + 8 * half);
    asm("" : "+x"(b));  // one load for all rows: left alone, the compiler folds it into each product
    for (int r = 0; r < kRows; ++r) s.lane[r][t][half] = _mm256_fmadd_ps(a[r], b, s.lane[r][t][half]);
  }
}

// y[token + t, row + r]; w and x point to the rows. Lanes beyond `in` are masked to zero, which adds nothing.
template <int kRows, int kTokens>
void tile(
    const float* const* w, const float* const* x, int64_t in, int64_t row, int64_t token, const Output& y) {
  Sums<kRows, kTokens> s;
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) s.lane[r][t][0] = s.lane[r][t][1] = _mm256_setzero_ps();
  }
  const auto whole = [](const float* p) { return _mm256_loadu_ps(p); };
  int64_t i = 0;
  for (; i + 16 <= in; i += 16) {
    step(s, w, x, i, 0, whole);
    step(s, w, x, i, 1, whole);
  }
  for (int half = 0; half < 2 && i + 8 * half < in; ++half) {
    const int64_t rest = in - i - 8 * half;
    const __m256i mask = first_lanes(rest < 8 ? rest : 8);
    step(s, w, x, i, half, [mask](const float* p) { return _mm256_maskload_ps(p, mask); });
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) {
      const float sum = fold(s.lane[r][t][0], s.lane[r][t][1]);
      y.y[(token + t) * y.out + row + r] = y.bias ? sum + y.bias[row + r] : sum;
    }
  }
}

template <int kRows, int kTokens>
void rows_of(const Rows& w, int64_t row, const float* x, int64_t token, int64_t in, const Output& y) {
  const float *wp[kRows], *xp[kTokens];
  for (int t = 0; t < kTokens; ++t) xp[t] = x + (token + t) * in;
  const auto at = [&](int64_t r) {
    return reinterpret_cast<const float*>(static_cast<const char*>(w.data) + (r - w.begin) * w.stride);
  };
  for (; row + kRows <= w.end; row += kRows) {
    for (int r = 0; r < kRows; ++r) wp[r] = at(row + r);
    tile<kRows, kTokens>(wp, xp, in, row, token, y);
  }
  for (; row < w.end; ++row) {
    wp[0] = at(row);
    tile<1, kTokens>(wp, xp, in, row, token, y);
  }
}

}  // namespace

void float_rows(const Rows& w, const float* x, int64_t tokens, int64_t in, const Output& y) {
  int64_t t = 0;
  for (; t + 3 <= tokens; t += 3) rows_of<2, 3>(w, w.begin, x, t, in, y);
  if (tokens - t == 2) rows_of<2, 2>(w, w.begin, x, t, in, y);
  if (tokens - t == 1) rows_of<4, 1>(w, w.begin, x, t, in, y);
}

void quantise(const float* x, int64_t begin, int64_t end, const Activations& a) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // undoes the lane order of two packs
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t b = 0; b < a.blocks; ++b) {
      const float* p = x + (t * a.blocks + b) * kBlock;
      __m256 v[4];
      __m256i top = _mm256_setzero_si256();  // bits of |v| order as its values do, with NaN above all
      for (int k = 0; k < 4; ++k) {
        v[k] = _mm256_loadu_ps(p + 8 * k);
        top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[k]), magnitude));
      }
      __m128i four = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
      four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
      four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
      const float amax = _mm_cvtss_f32(_mm_castsi128_ps(four));
      const bool tiny = amax < kTiny;
      const float d = tiny ? 0 : amax / 127.0f;
      const __m256 inverse = _mm256_set1_ps(tiny ? 0 : 127.0f / amax);
      __m256i q[4];
      for (int k = 0; k < 4; ++k) q[k] = _mm256_cvtps_epi32(_mm256_mul_ps(v[k], inverse));  // to nearest even
      const __m256i words[2] = {_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])};
      const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words[0], words[1]), order);
      const int64_t at = place(a, t, b);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(a.q + at * kBlock), bytes);
      const __m256i ones = _mm256_set1_epi16(1);
      const __m256i pairs[2] = {_mm256_madd_epi16(words[0], ones), _mm256_madd_epi16(words[1], ones)};
      // Lanes: first half, second half, twice over.
      const __m256i both = _mm256_hadd_epi32(pairs[0], pairs[1]);
      __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
      sum = _mm_hadd_epi32(sum, sum);
      a.half[at] = _mm_cvtsi128_si32(sum);
      a.sum[at] = a.half[at] + _mm_extract_epi32(sum, 1);
      a.d[at] = d;
      a.dsum[at] = d * float(a.sum[at]);
    }
  }
}

}  // namespace se::linear_detail::avx2

namespace se::linear_detail {

const Routines& avx2_routines() {
  static constexpr Routines kRoutines{avx2::quantise, avx2::block_rows, avx2::float_rows};
  return kRoutines;
}

}  // namespace se::linear_detail
