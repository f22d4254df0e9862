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
    switch (n) {
      case 1:
        some.template operator()<1>(r);
        break;
      case 2:
        some.template operator()<2>(r);
        break;
      case 3:
        some.template operator()<3>(r);
        break;
      case 4:
        some.template operator()<4>(r);
        break;
      case 5:
        some.template operator()<5>(r);
        break;
      case 6:
        some.template operator()<6>(r);
        break;
      case 7:
        some.template operator()<7>(r);
        break;
      default:
        some.template operator()<8>(r);
        break;
    }
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

const AttentionCore kCoreAvx512 = {dots, absorb, add_rows, finish, merge, widen, 8, absorb_codes_avx512};

}  // namespace se::cpu
