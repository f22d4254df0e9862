// Products of float rows with AVX-512: one register is the sixteen lanes of a product, so that its order is
// the reference's whatever the tile. Halves are widened as they are loaded.
#include <immintrin.h>

#include <utility>

#include "kernels/linear/packed.h"

namespace se::linear_detail {
namespace {

struct F32 {
  using Element = float;
  static __m512 load(const float* p, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, p); }
};
struct F16 {
  using Element = uint16_t;
  static __m512 load(const uint16_t* p, __mmask16 lanes) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, p));
  }
};
struct BF16 {
  using Element = uint16_t;
  static __m512 load(const uint16_t* p, __mmask16 lanes) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
};

inline float fold(__m512 lanes) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// y[token .. token + kTokens, row .. row + kRows); the sums are unrolled by name (kSum: row and token in
// one).
template <typename Type, int kRows, int kTokens, size_t... kSum>
void tile(std::index_sequence<kSum...>,
          const Rows& w,
          int64_t row,
          const float* x,
          int64_t token,
          int64_t in,
          const Output& y) {
  using Element = typename Type::Element;
  const char* first = static_cast<const char*>(w.data) + (row - w.begin) * w.stride;
  const auto row_at = [&](int r) { return reinterpret_cast<const Element*>(first + r * w.stride); };
  const float* tokens = x + token * in;
  __m512 sums[kRows * kTokens] = {};
  const auto step = [&](int64_t i, __mmask16 lanes) __attribute__((always_inline)) {
    __m512 a[kRows], b{};
    for (int r = 0; r < kRows; ++r) {
      a[r] = Type::load(row_at(r) + i, lanes);
      if constexpr (kTokens <= 2)  // short rows are too many streams: ask for the same place in the next rows
        _mm_prefetch(reinterpret_cast<const char*>(row_at(kRows + r) + i), _MM_HINT_T0);
    }
    const auto load = [&](size_t t) {
      b = _mm512_maskz_loadu_ps(lanes, tokens + int64_t(t) * in + i);
      asm("" : "+v"(b));  // one load for all rows: left alone, the compiler folds it into each product
    };
    ((kSum % kRows == 0 ? load(kSum / kRows) : void(),
      sums[kSum] = _mm512_fmadd_ps(a[kSum % kRows], b, sums[kSum])),
     ...);
  };
  int64_t i = 0;
  for (; i + 16 <= in; i += 16) step(i, 0xffff);
  if (i < in) step(i, __mmask16((1u << (in - i)) - 1));
  const auto store = [&](int64_t r, int64_t t, __m512 lanes) {
    const float sum = fold(lanes);
    y.y[(token + t) * y.out + row + r] = y.bias ? sum + y.bias[row + r] : sum;
  };
  (store(kSum % kRows, kSum / kRows, sums[kSum]), ...);
}

template <typename Type, int kRows, int kTokens>
void rows_of(const Rows& w, const float* x, int64_t token, int64_t in, const Output& y) {
  int64_t row = w.begin;
  for (; row + kRows <= w.end; row += kRows)
    tile<Type, kRows, kTokens>(std::make_index_sequence<kRows * kTokens>(), w, row, x, token, in, y);
  for (; row < w.end; ++row)
    tile<Type, 1, kTokens>(std::make_index_sequence<kTokens>(), w, row, x, token, in, y);
}

template <typename Type>
void rows(const Rows& w, const float* x, int64_t tokens, int64_t in, const Output& y) {
  int64_t t = 0;
  for (; t + 6 <= tokens; t += 6) rows_of<Type, 4, 6>(w, x, t, in, y);
  for (; t + 2 <= tokens; t += 2) rows_of<Type, 4, 2>(w, x, t, in, y);
  if (t < tokens) rows_of<Type, 4, 1>(w, x, t, in, y);
}

}  // namespace

void float_rows_avx512(
    FloatType type, const Rows& w, const float* x, int64_t tokens, int64_t in, const Output& y) {
  switch (type) {
    case FloatType::kF32:
      return rows<F32>(w, x, tokens, in, y);
    case FloatType::kF16:
      return rows<F16>(w, x, tokens, in, y);
    case FloatType::kBF16:
      return rows<BF16>(w, x, tokens, in, y);
  }
}

}  // namespace se::linear_detail
