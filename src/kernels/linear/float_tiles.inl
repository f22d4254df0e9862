// float_tiles.inl -- products of float rows in tiles of rows x tokens, for the AVX-512 files of this folder;
// all of it has internal linkage. A register is the sixteen lanes of a product, so that its order is the
// reference's whatever the tile.
//
// Type says what an element is: Element and X, kStep elements a step, Weights and Tokens in registers, load
// and load_tokens (n <= kStep elements, the rest zero), multiply(weights, tokens, sum), and keep, which tells
// the compiler that the tokens are in a register.
#include <immintrin.h>

#include <utility>

#include "kernels/linear/packed.h"

namespace se::linear_detail {
namespace {

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
          const typename Type::X* x,
          int64_t stride,
          int64_t token,
          int64_t in,
          const Output& y) {
  using Element = typename Type::Element;
  constexpr int kStep = Type::kStep;
  const char* first = static_cast<const char*>(w.data) + (row - w.begin) * w.stride;
  const auto row_at = [&](int r) { return reinterpret_cast<const Element*>(first + r * w.stride); };
  const auto* tokens = x + token * stride;
  __m512 sums[kRows * kTokens] = {};
  const auto step = [&](int64_t i, int n) __attribute__((always_inline)) {
    typename Type::Weights a[kRows];
    typename Type::Tokens b{};
    for (int r = 0; r < kRows; ++r) {
      a[r] = Type::load(row_at(r) + i, n);
      if constexpr (kTokens <= 2)  // short rows are too many streams: ask for the same place in the next rows
        _mm_prefetch(reinterpret_cast<const char*>(row_at(kRows + r) + i), _MM_HINT_T0);
    }
    const auto load = [&](size_t t) {
      b = Type::load_tokens(tokens + int64_t(t) * stride + i, n);
      Type::keep(b);  // one load for all rows: left alone, the compiler folds it into each product
    };
    ((kSum % kRows == 0 ? load(kSum / kRows) : void(),
      sums[kSum] = Type::multiply(a[kSum % kRows], b, sums[kSum])),
     ...);
  };
  int64_t i = 0;
  for (; i + kStep <= in; i += kStep) step(i, kStep);
  if (i < in) step(i, int(in - i));
  const auto store = [&](int64_t r, int64_t t, __m512 lanes) {
    const float sum = fold(lanes);
    y.y[(token + t) * y.out + row + r] = y.bias ? sum + y.bias[row + r] : sum;
  };
  (store(kSum % kRows, kSum / kRows, sums[kSum]), ...);
}

template <typename Type, int kRows, int kTokens>
void rows_of(
    const Rows& w, const typename Type::X* x, int64_t stride, int64_t token, int64_t in, const Output& y) {
  int64_t row = w.begin;
  for (; row + kRows <= w.end; row += kRows)
    tile<Type, kRows, kTokens>(std::make_index_sequence<kRows * kTokens>(), w, row, x, stride, token, in, y);
  for (; row < w.end; ++row)
    tile<Type, 1, kTokens>(std::make_index_sequence<kTokens>(), w, row, x, stride, token, in, y);
}

template <typename Type>
void rows(
    const Rows& w, const typename Type::X* x, int64_t stride, int64_t tokens, int64_t in, const Output& y) {
  int64_t t = 0;
  for (; t + 6 <= tokens; t += 6) rows_of<Type, 4, 6>(w, x, stride, t, in, y);
  for (; t + 2 <= tokens; t += 2) rows_of<Type, 4, 2>(w, x, stride, t, in, y);
  if (t < tokens) rows_of<Type, 4, 1>(w, x, stride, t, in, y);
}

}  // namespace
}  // namespace se::linear_detail
