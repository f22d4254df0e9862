// kernels/attention/core.inl -- the bodies of AttentionCore, for the eight-lane type of the including file.
// Include after core.h, vec8_*.inl and exp8.inl.
//
// Register blocking: up to 3 query rows x 4 keys (or 4 value vectors) keep 12 independent sums in flight,
// which hides the latency of the multiply-add with 16 registers. 3 because groups of 3 heads are common, and
// tiles of a prompt take any number.
namespace {

using se::cpu::Ahead;
using se::cpu::AttentionCore;
using se::cpu::kKeyBlock;
using se::cpu::RowType;
using se::cpu::Running;

constexpr float kMinusInf = -__builtin_inff();

// The next `lines` lines of what lies ahead.
inline void fetch(Ahead* ahead, int lines) {
  if (!ahead) return;
  Ahead& a = *ahead;
  while (lines > 0 && a.at < a.n) {
    const char* p = a.begin[a.at];
    for (; lines > 0 && p < a.end[a.at]; p += 64, --lines) __builtin_prefetch(p);
    a.begin[a.at] = p;
    if (p >= a.end[a.at]) ++a.at;
  }
}
template <RowType kType>
constexpr int kBytes = kType == RowType::kF32 ? 4 : 2;

template <RowType kType>
inline F8 load_row(const void* row, int i) {
  if constexpr (kType == RowType::kF32) return load8(static_cast<const float*>(row) + i);
  if constexpr (kType == RowType::kF16) return load8_f16(static_cast<const uint16_t*>(row) + i);
  if constexpr (kType == RowType::kBF16) return load8_bf16(static_cast<const uint16_t*>(row) + i);
}

template <RowType kType, int kRows, int kKeys>
inline void dot_block(const float* q, int64_t q_stride, const void* const* keys, int dim, float* out) {
  F8 sum[kRows][kKeys];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kKeys; ++j) sum[r][j] = zero8();
  }
  for (int d = 0; d < dim; d += 8) {
    F8 a[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) a[r] = load8(q + r * q_stride + d);
#pragma GCC unroll 8
    for (int j = 0; j < kKeys; ++j) {
      const F8 k = load_row<kType>(keys[j], d);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sum[r][j] = fma8(a[r], k, sum[r][j]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kKeys; j += 4)
      store_sums4(out + r * kKeyBlock + j, sum[r][j], sum[r][j + 1], sum[r][j + 2], sum[r][j + 3]);
  }
}

template <RowType kType, int kRows>
inline void dot_rows(
    const float* q, int64_t q_stride, const void* const* keys, int n, int dim, float* out, Ahead* ahead) {
  const int lines = (dim * kBytes<kType> + 63) / 64;  // of a key: what is read now is asked for next
  int j = 0;
  if constexpr (kRows == 1) {
    for (; j + 8 <= n; j += 8) {
      fetch(ahead, 8 * lines);
      dot_block<kType, 1, 8>(q, q_stride, keys + j, dim, out + j);
    }
  }
  for (; j < n; j += 4) {
    fetch(ahead, 4 * lines);
    dot_block<kType, kRows, 4>(q, q_stride, keys + j, dim, out + j);
  }
}

template <RowType kType>
void dots_of(const float* q,
             int64_t q_stride,
             int rows,
             const void* const* keys,
             int n,
             int dim,
             float* out,
             Ahead* ahead) {
  int r = 0;
  for (; r + 3 <= rows; r += 3)
    dot_rows<kType, 3>(q + r * q_stride, q_stride, keys, n, dim, out + r * kKeyBlock, ahead);
  if (rows - r == 2) dot_rows<kType, 2>(q + r * q_stride, q_stride, keys, n, dim, out + r * kKeyBlock, ahead);
  if (rows - r == 1) dot_rows<kType, 1>(q + r * q_stride, q_stride, keys, n, dim, out + r * kKeyBlock, ahead);
}

// Every score is -inf: as if nothing was seen.
inline float weigh_nothing(float* s) {
  for (int j = 0; j < kKeyBlock; ++j) s[j] = 0;
  return 1;
}

// Scores of one row become weights; m and l move on. Returns the factor of what was summed before.
inline float weigh(float* s, float scale, int from, int seen, float* m, float* l) {
  constexpr int kVecs = kKeyBlock / 8;
  if (seen <= from) return 1;
  for (int j = 0; j < from; ++j) s[j] = kMinusInf;
  for (int j = seen; j < kKeyBlock; ++j) s[j] = kMinusInf;  // weight 0 exactly
  F8 x[kVecs], top = set8(*m);
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) {
    x[v] = mul8(load8(s + 8 * v), set8(scale));
    top = max8(top, x[v]);
  }
  const float now = largest8(top);
  if (now == kMinusInf) return weigh_nothing(s);
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) {
    x[v] = exp8(sub8(x[v], set8(now)));
    store8(s + 8 * v, x[v]);
  }
  const float sum = sum8(add8(add8(x[0], x[1]), add8(x[2], x[3])));
  if (*m == now) {
    *l += sum;
    return 1;
  }
  const float kept = exp1(*m - now);
  *m = now;
  *l = *l * kept + sum;
  return kept;
}

// acc[r][0 .. 8 * kVecs) = acc * kept[r] + sum of weight x value, keys ascending.
template <RowType kType, int kRows, int kVecs>
inline void sum_values(float* acc,
                       int64_t stride,
                       const float* kept,
                       const float* weights,
                       const void* const* values,
                       int n,
                       int d,
                       Ahead* ahead) {
  F8 sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sum[r][v] = mul8(load8(acc + r * stride + 8 * v), set8(kept[r]));
  }
  for (int j = 0; j < n; ++j) {
    fetch(ahead, (kVecs * 8 * kBytes<kType> + 63) / 64);
    F8 w[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) w[r] = set8(weights[r * kKeyBlock + j]);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const F8 x = load_row<kType>(values[j], d + 8 * v);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sum[r][v] = fma8(w[r], x, sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) store8(acc + r * stride + 8 * v, sum[r][v]);
  }
}

template <RowType kType, int kRows>
inline void add_values(float* acc,
                       int64_t stride,
                       const float* kept,
                       const float* weights,
                       const void* const* values,
                       int n,
                       int dim,
                       Ahead* ahead) {
  int d = 0;
  if constexpr (kRows == 1) {
    for (; d + 64 <= dim; d += 64)
      sum_values<kType, 1, 8>(acc + d, stride, kept, weights, values, n, d, ahead);
  }
  for (; d + 32 <= dim; d += 32)
    sum_values<kType, kRows, 4>(acc + d, stride, kept, weights, values, n, d, ahead);
  for (; d + 16 <= dim; d += 16)
    sum_values<kType, kRows, 2>(acc + d, stride, kept, weights, values, n, d, ahead);
  for (; d < dim; d += 8) sum_values<kType, kRows, 1>(acc + d, stride, kept, weights, values, n, d, ahead);
}

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
  for (int r = 0; r < kRows; ++r) {
    kept[r] = weigh(s + r * kKeyBlock, scale, from ? from[r] : 0, seen[r], m + r, l + r);
    end = seen[r] < end ? seen[r] : end;
    if (from && from[r] > begin) begin = from[r];
  }
  if (begin > end) begin = end;
  const auto alone = [&](int r, int first, int last) {
    if (first >= last) return;
    const float* weights = s + r * kKeyBlock + first;
    add_values<kType, 1>(
        acc + r * stride, stride, kept + r, weights, values + first, last - first, dim, ahead);
    kept[r] = 1;
  };
  for (int r = 0; from && r < kRows; ++r) alone(r, from[r], begin);
  add_values<kType, kRows>(acc, stride, kept, s + begin, values + begin, end - begin, dim, ahead);
  for (int r = 0; r < kRows; ++r) {
    const int first = from && from[r] > end ? from[r] : end;
    kept[r] = 1;
    alone(r, first, seen[r]);
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
  int r = 0;
  for (; r + 3 <= rows; r += 3) some.template operator()<3>(r);
  if (rows - r == 2) some.template operator()<2>(r);
  if (rows - r == 1) some.template operator()<1>(r);
}

template <RowType kType>
void widen_of(const char* in, int64_t in_stride, int rows, int dim, float* out, int64_t out_stride) {
  constexpr int kSize = kType == RowType::kF32 ? 4 : 2;
  for (int r = 0; r < rows; ++r, in += in_stride, out += out_stride) {
    int i = 0;
    for (; i + 8 <= dim; i += 8) store8(out + i, load_row<kType>(in, i));
    if (i == dim) continue;
    char narrow[32] = {};
    float wide[8];
    __builtin_memcpy(narrow, in + i * kSize, size_t(dim - i) * kSize);
    store8(wide, load_row<kType>(narrow, 0));
    __builtin_memcpy(out + i, wide, size_t(dim - i) * 4);
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
  switch (type) {
    case RowType::kF32:
      return dots_of<RowType::kF32>(q, q_stride, rows, keys, n, dim, out, ahead);
    case RowType::kF16:
      return dots_of<RowType::kF16>(q, q_stride, rows, keys, n, dim, out, ahead);
    case RowType::kBF16:
      return dots_of<RowType::kBF16>(q, q_stride, rows, keys, n, dim, out, ahead);
  }
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
  switch (type) {
    case RowType::kF32:
      return absorb_of<RowType::kF32>(s, scale, from, seen, rows, values, dim, run, ahead);
    case RowType::kF16:
      return absorb_of<RowType::kF16>(s, scale, from, seen, rows, values, dim, run, ahead);
    case RowType::kBF16:
      return absorb_of<RowType::kBF16>(s, scale, from, seen, rows, values, dim, run, ahead);
  }
}

void add_rows(const float* weights, const void* const* rows, RowType type, int n, int dim, float* out) {
  const float one = 1;
  switch (type) {
    case RowType::kF32:
      return add_values<RowType::kF32, 1>(out, dim, &one, weights, rows, n, dim, nullptr);
    case RowType::kF16:
      return add_values<RowType::kF16, 1>(out, dim, &one, weights, rows, n, dim, nullptr);
    case RowType::kBF16:
      return add_values<RowType::kBF16, 1>(out, dim, &one, weights, rows, n, dim, nullptr);
  }
}

void add_split(const Running& to, const Running& split, int rows, int dim) {
  for (int r = 0; r < rows; ++r) {
    float* acc = to.acc + r * to.stride;
    const float* other = split.acc + r * split.stride;
    if (split.m[r] == kMinusInf) continue;
    if (to.m[r] == kMinusInf) {
      __builtin_memcpy(acc, other, size_t(dim) * 4);
      to.m[r] = split.m[r], to.l[r] = split.l[r];
      continue;
    }
    const bool other_leads = to.m[r] < split.m[r];
    const float m = other_leads ? split.m[r] : to.m[r];
    const float less = exp1((other_leads ? to.m[r] : split.m[r]) - m);  // the greater one's exponential is 1
    const float w = other_leads ? less : 1, u = other_leads ? 1 : less;
    for (int d = 0; d < dim; d += 8)
      store8(acc + d, fma8(set8(u), load8(other + d), mul8(set8(w), load8(acc + d))));
    to.m[r] = m, to.l[r] = w * to.l[r] + u * split.l[r];
  }
}

float finish(float m, float l, const float* acc, int dim, float* out) {
  if (m == kMinusInf) {
    for (int d = 0; d < dim; ++d) out[d] = 0;
    return kMinusInf;
  }
  int d = 0;
  for (; d + 8 <= dim; d += 8) store8(out + d, div8(load8(acc + d), set8(l)));
  for (; d < dim; ++d) out[d] = acc[d] / l;
  return m + log1(l);
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
  int d = 0;
  for (; d + 8 <= dim; d += 8)
    store8(out + d, div8(add8(mul8(set8(w), load8(out + d)), mul8(set8(u), load8(other + d))), set8(t)));
  for (; d < dim; ++d) out[d] = (w * out[d] + u * other[d]) / t;
  *lse = m + log1(t);
}

void widen(
    const char* in, int64_t in_stride, RowType type, int rows, int dim, float* out, int64_t out_stride) {
  switch (type) {
    case RowType::kF32:
      return widen_of<RowType::kF32>(in, in_stride, rows, dim, out, out_stride);
    case RowType::kF16:
      return widen_of<RowType::kF16>(in, in_stride, rows, dim, out, out_stride);
    case RowType::kBF16:
      return widen_of<RowType::kBF16>(in, in_stride, rows, dim, out, out_stride);
  }
}

}  // namespace
