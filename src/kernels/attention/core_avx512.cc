// core_avx512.cc -- AttentionCore with sixteen lanes and 32 registers.
//
// Dots: lane d % 16 sums its products in ascending d; then the lanes of a quarter as (0+2) + (1+3) and the
// quarters as (0+1) + (2+3). Sixteen dots are summed across their lanes together, whether of 1 row x 16 keys,
// 2 x 8 or 4 x 4: a dot's bits do not depend on its neighbours. Values: up to eight rows share a value that
// is read and widened once; keys ascending.
#include "kernels/attention/core_avx512.inl"

#include "kernels/attention/codes_avx512.h"

namespace {

template <RowType kType, int kRows>
inline void absorb_rows(float* s,
                        float scale,
                        const int32_t* from,
                        const int32_t* seen,
                        const void* const* values,
                        int dim,
                        float* m,
                        float* l,
                        float* acc,
                        int64_t stride,
                        Ahead* ahead) {
  float kept[kRows];
  int begin = 0, end = seen[0];  // keys that all rows see; the rest row by row: no unseen value is touched
  weigh<kRows>(s, scale, from, seen, m, l, kept);
  for (int r = 0; r < kRows; ++r) {
    end = seen[r] < end ? seen[r] : end;
    if (from && from[r] > begin) begin = from[r];
  }
  if (begin > end) begin = end;
  const auto alone = [&](int r, int first, int last) {
    if (first >= last) return;
    add_values<kType, 1>(acc + r * stride,
                         stride,
                         kept + r,
                         s + r * kKeyBlock + first,
                         values + first,
                         last - first,
                         dim,
                         ahead);
    kept[r] = 1;
  };
  for (int r = 0; from && r < kRows; ++r) alone(r, from[r], begin);
  add_values<kType, kRows>(acc, stride, kept, s + begin, values + begin, end - begin, dim, ahead);
  for (int r = 0; r < kRows; ++r) {
    kept[r] = 1;
    alone(r, from && from[r] > end ? from[r] : end, seen[r]);
  }
}

template <RowType kType>
void absorb_of(float* s,
               float scale,
               const int32_t* from,
               const int32_t* seen,
               int rows,
               const void* const* values,
               int dim,
               const Running& run,
               Ahead* ahead) {
  const auto some = [&]<int kRows>(int r) {
    absorb_rows<kType, kRows>(s + r * kKeyBlock,
                              scale,
                              from ? from + r : nullptr,
                              seen + r,
                              values,
                              dim,
                              run.m + r,
                              run.l + r,
                              run.acc + r * run.stride,
                              run.stride,
                              ahead);
  };
  for (int r = 0; r < rows;) {  // 7 heads of a group in one pass, 9 as 5 + 4
    const int left = rows - r, n = left <= 8 ? left : left == 9 ? 5 : 8;
    with_rows(n, [&]<int kRows>() { some.template operator()<kRows>(r); });
    r += n;
  }
}

template <RowType kType>
void widen_of(const char* in, int64_t in_stride, int rows, int dim, float* out, int64_t out_stride) {
  for (int r = 0; r < rows; ++r, in += in_stride, out += out_stride) {
    int i = 0;
    for (; i + 16 <= dim; i += 16) _mm512_storeu_ps(out + i, load_row<kType>(in, i));
    if (i < dim)
      _mm512_mask_storeu_ps(out + i, __mmask16((1u << (dim - i)) - 1), load_some<kType>(in, i, dim - i));
  }
}

// Calls f with the type as a constant.
template <typename F>
inline void by_type(RowType type, const F& f) {
  switch (type) {
    case RowType::kF32:
      return f.template operator()<RowType::kF32>();
    case RowType::kF16:
      return f.template operator()<RowType::kF16>();
    case RowType::kBF16:
      return f.template operator()<RowType::kBF16>();
  }
}

void dots(const float* q,
          int64_t q_stride,
          int rows,
          const void* const* keys,
          RowType type,
          int n,
          int dim,
          float* out,
          Ahead* ahead) {
  by_type(type, [&]<RowType kType>() { dots_of<kType>(q, q_stride, rows, keys, n, dim, out, ahead); });
}

void absorb(float* s,
            float scale,
            const int32_t* from,
            const int32_t* seen,
            int rows,
            const void* const* values,
            RowType type,
            int dim,
            const Running& run,
            Ahead* ahead) {
  by_type(type,
          [&]<RowType kType>() { absorb_of<kType>(s, scale, from, seen, rows, values, dim, run, ahead); });
}

void add_rows(const float* weights, const void* const* rows, RowType type, int n, int dim, float* out) {
  const float one = 1;
  by_type(type,
          [&]<RowType kType>() { add_values<kType, 1>(out, dim, &one, weights, rows, n, dim, nullptr); });
}

void add_split(const Running& to, const Running& split, int rows, int dim) {
  const F16 none = set16(kMinusInf);
  for (int at = 0; at < rows; at += 16) {
    const int n = rows - at < 16 ? rows - at : 16;
    const __mmask16 some = __mmask16((1u << n) - 1);
    const F16 m = _mm512_mask_loadu_ps(none, some, to.m + at), l = _mm512_maskz_loadu_ps(some, to.l + at);
    const F16 other_m = _mm512_mask_loadu_ps(none, some, split.m + at),
              other_l = _mm512_maskz_loadu_ps(some, split.l + at);
    const __mmask16 leads = _mm512_cmp_ps_mask(m, other_m, _CMP_LT_OQ);
    const F16 top = _mm512_mask_mov_ps(m, leads, other_m);
    const F16 less = exp16(_mm512_sub_ps(_mm512_mask_mov_ps(other_m, leads, m), top));
    alignas(64) float w[16], u[16];  // the greater one's exponential is 1
    const F16 one = set16(1), ours = _mm512_mask_mov_ps(one, leads, less),
              theirs = _mm512_mask_mov_ps(less, leads, one);
    _mm512_store_ps(w, ours), _mm512_store_ps(u, theirs);
    const __mmask16 empty = _mm512_cmp_ps_mask(other_m, none, _CMP_EQ_OQ),
                    fresh = _mm512_cmp_ps_mask(m, none, _CMP_EQ_OQ);
    const F16 sum = _mm512_fmadd_ps(theirs, other_l, _mm512_mul_ps(ours, l));
    _mm512_mask_storeu_ps(to.m + at, __mmask16(some & ~empty), top);
    _mm512_mask_storeu_ps(to.l + at, __mmask16(some & ~empty), _mm512_mask_mov_ps(sum, fresh, other_l));
    for (int r = 0; r < n; ++r) {
      if (empty >> r & 1) continue;
      float* acc = to.acc + (at + r) * to.stride;
      const float* other = split.acc + (at + r) * split.stride;
      for (int d = 0; d < dim; d += 16) {
        const __mmask16 lanes = dim - d >= 16 ? __mmask16(0xffff) : __mmask16(0xff);
        const F16 y = _mm512_maskz_loadu_ps(lanes, other + d);
        const F16 x = _mm512_mul_ps(set16(w[r]), _mm512_maskz_loadu_ps(lanes, acc + d));
        _mm512_mask_storeu_ps(acc + d, lanes, fresh >> r & 1 ? y : _mm512_fmadd_ps(set16(u[r]), y, x));
      }
    }
  }
}

float finish(float m, float l, const float* acc, int dim, float* out) {
  const bool none = m == kMinusInf;
  for (int d = 0; d < dim; d += 16) {
    const __mmask16 some = dim - d >= 16 ? __mmask16(0xffff) : __mmask16((1u << (dim - d)) - 1);
    const F16 x = none ? zero16() : _mm512_div_ps(_mm512_maskz_loadu_ps(some, acc + d), set16(l));
    _mm512_mask_storeu_ps(out + d, some, x);
  }
  return none ? kMinusInf : m + __builtin_logf(l);
}

void merge(float* out, float* lse, const float* other, float other_lse, int dim) {
  if (other_lse == kMinusInf) return;
  if (*lse == kMinusInf) {
    __builtin_memcpy(out, other, size_t(dim) * 4);
    *lse = other_lse;
    return;
  }
  const bool other_leads = *lse < other_lse;
  const float m = other_leads ? other_lse : *lse;
  const float less = exp1((other_leads ? *lse : other_lse) - m);  // the greater one's exponential is 1
  const float w = other_leads ? less : 1, u = other_leads ? 1 : less, t = w + u;
  for (int d = 0; d < dim; d += 16) {
    const __mmask16 some = dim - d >= 16 ? __mmask16(0xffff) : __mmask16((1u << (dim - d)) - 1);
    const F16 x = _mm512_mul_ps(set16(w), _mm512_maskz_loadu_ps(some, out + d));
    const F16 y = _mm512_fmadd_ps(set16(u), _mm512_maskz_loadu_ps(some, other + d), x);
    _mm512_mask_storeu_ps(out + d, some, _mm512_div_ps(y, set16(t)));
  }
  *lse = m + __builtin_logf(t);
}

void widen(
    const char* in, int64_t in_stride, RowType type, int rows, int dim, float* out, int64_t out_stride) {
  by_type(type, [&]<RowType kType>() { widen_of<kType>(in, in_stride, rows, dim, out, out_stride); });
}

}  // namespace

namespace se::cpu {

const AttentionCore kCoreAvx512 = {
    dots, absorb, add_rows, add_split, finish, merge, widen, 8, absorb_codes_avx512};

}  // namespace se::cpu
