// codes_avx512.cc -- attention over codes as they lie: q . (min + code step) = q . min + (q step) . code, and
// the sum of p (min + code step) likewise. What is left per 16 channels of a key is a shift, a look-up and
// the products.
#include "kernels/attention/codes_avx512.h"

#include "kernels/attention/core_avx512.inl"

namespace {

using se::cpu::CodeFormat;
using se::cpu::CodePiece;
using se::cpu::kMostCodeDim;

struct Folded {                             // of one piece
  alignas(64) float q[8 * kMostCodeDim];    // [row, k_dim]  query x step
  alignas(64) float scores[8 * kKeyBlock];  // [row, key]
  alignas(32) float base[8];                // [row]  query . min
};

inline F16 add(F16 a, F16 b) { return _mm512_add_ps(a, b); }

template <RowType kMin, int kRows>
inline void fold_queries(const float* q, int64_t stride, const CodePiece& p, int dim, Folded& to) {
  F16 sum[8];
  for (int r = 0; r < 8; ++r) sum[r] = zero16();
  for (int d = 0; d < dim; d += 16) {
    const F16 step = load_row<RowType::kF16>(p.k_step, d), low = load_row<kMin>(p.k_min, d);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F16 x = _mm512_loadu_ps(q + r * stride + d);
      _mm512_storeu_ps(to.q + r * dim + d, _mm512_mul_ps(x, step));
      sum[r] = _mm512_fmadd_ps(x, low, sum[r]);
    }
  }
  _mm256_store_ps(to.base, fold_rows(sum, add));
}

// scores[r][0 .. n) of one piece, unscaled.
template <auto kCode, RowType kMin, int kRows>
inline void score_piece(const float* q,
                        int64_t stride,
                        const CodeFormat& f,
                        const CodePiece& p,
                        Folded& work,
                        float* scores,
                        Ahead* ahead) {
  fold_queries<kMin, kRows>(q, stride, p, f.k_dim, work);
  const void* keys[kKeyBlock];
  const int row = f.k_dim * bits_of(f.type) / 8;
  for (int j = 0; j < (p.n + 3) / 4 * 4; ++j) keys[j] = p.k + (j < p.n ? j : p.n - 1) * row;
  dots_of<kCode>(work.q, f.k_dim, kRows, keys, p.n, f.k_dim, work.scores, ahead);
  const uint32_t all = uint32_t((uint64_t{1} << p.n) - 1);
  for (int r = 0; r < kRows; ++r) {
    const float* from = work.scores + r * kKeyBlock;
    float* to = scores + r * kKeyBlock;
    const F16 base = set16(work.base[r]);
    _mm512_mask_storeu_ps(to, __mmask16(all), _mm512_add_ps(_mm512_loadu_ps(from), base));
    _mm512_mask_storeu_ps(to + 16, __mmask16(all >> 16), _mm512_add_ps(_mm512_loadu_ps(from + 16), base));
  }
}

// acc = acc * kept + the piece's weighted values; weights [row, kKeyBlock].
template <auto kCode, RowType kMin, int kRows>
inline void sum_piece(const float* weights,
                      const float* kept,
                      const CodeFormat& f,
                      const CodePiece& p,
                      const Running& run,
                      Ahead* ahead) {
  const int groups = f.v_dim / f.group, bits = bits_of(f.type), row = f.v_dim * bits / 8;
  alignas(64) float step[kKeyBlock * (kMostCodeDim / 16)], low[kKeyBlock * (kMostCodeDim / 16)];
  const int metas = p.n * groups;
  for (int i = 0; i < metas; i += 16) {
    const int n = metas - i < 16 ? metas - i : 16;
    _mm512_storeu_ps(step + i, load_some<RowType::kF16>(p.v_step, i, n));
    _mm512_storeu_ps(low + i, load_some<kMin>(p.v_min, i, n));
  }
  for (int g = 0; g < groups; ++g) {
    alignas(64) float steps[kKeyBlock] = {}, lows[kKeyBlock] = {}, folded[8 * kKeyBlock];
    const void* values[kKeyBlock];
    for (int j = 0; j < p.n; ++j) {
      steps[j] = step[j * groups + g], lows[j] = low[j * groups + g];
      values[j] = p.v + j * row + g * f.group * bits / 8;
    }
    const uint32_t all = uint32_t((uint64_t{1} << p.n) - 1);
    F16 sum[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
      sum[r] = zero16();
      if (r >= kRows) continue;
      const F16 a = _mm512_maskz_loadu_ps(__mmask16(all), weights + r * kKeyBlock);
      const F16 b = _mm512_maskz_loadu_ps(__mmask16(all >> 16), weights + r * kKeyBlock + 16);
      _mm512_store_ps(folded + r * kKeyBlock, _mm512_mul_ps(a, _mm512_load_ps(steps)));
      _mm512_store_ps(folded + r * kKeyBlock + 16, _mm512_mul_ps(b, _mm512_load_ps(steps + 16)));
      sum[r] = _mm512_fmadd_ps(b, _mm512_load_ps(lows + 16), _mm512_mul_ps(a, _mm512_load_ps(lows)));
    }
    alignas(32) float base[8];
    _mm256_store_ps(base, fold_rows(sum, add));
    float* acc = run.acc + g * f.group;
    add_values<kCode, kRows>(acc, run.stride, kept, folded, values, p.n, f.group, ahead);
    for (int r = 0; r < kRows; ++r) {
      float* to = acc + r * run.stride;
      for (int d = 0; d < f.group; d += 16)
        _mm512_storeu_ps(to + d, add(_mm512_loadu_ps(to + d), set16(base[r])));
    }
  }
}

template <auto kCode, RowType kMin, int kRows>
void block(const float* q,
           int64_t stride,
           float scale,
           const CodeFormat& f,
           const CodePiece* pieces,
           int n_pieces,
           const Running& run,
           Ahead* ahead) {
  Folded work;
  alignas(64) float scores[8 * kKeyBlock];
  int32_t seen[kRows];
  float kept[kRows];
  int n = 0;
  for (int i = 0; i < n_pieces; n += pieces[i++].n)
    score_piece<kCode, kMin, kRows>(q, stride, f, pieces[i], work, scores + n, ahead);
  for (int r = 0; r < kRows; ++r) seen[r] = n;
  weigh<kRows>(scores, scale, nullptr, seen, run.m, run.l, kept);
  for (int i = 0, at = 0; i < n_pieces; at += pieces[i++].n) {
    sum_piece<kCode, kMin, kRows>(scores + at, kept, f, pieces[i], run, ahead);
    for (int r = 0; r < kRows; ++r) kept[r] = 1;
  }
}

}  // namespace

namespace se::cpu {

void absorb_codes_avx512(const float* q,
                         int64_t q_stride,
                         int rows,
                         float scale,
                         const CodeFormat& f,
                         const CodePiece* pieces,
                         int n_pieces,
                         const Running& run,
                         Ahead* ahead) {
  if (bits_of(f.type) == 8)
    return absorb_floats8_avx512(q, q_stride, rows, scale, f, pieces, n_pieces, run, ahead);
  const auto with = [&]<RowType kMin>() {
    with_rows(rows, [&]<int kRows>() {
      const auto absorb =
          f.type == CodeType::k4 ? block<CodeType::k4, kMin, kRows> : block<CodeType::k2, kMin, kRows>;
      absorb(q, q_stride, scale, f, pieces, n_pieces, run, ahead);
    });
  };
  switch (f.min) {
    case RowType::kF32:
      return with.template operator()<RowType::kF32>();
    case RowType::kF16:
      return with.template operator()<RowType::kF16>();
    case RowType::kBF16:
      return with.template operator()<RowType::kBF16>();
  }
}

}  // namespace se::cpu
