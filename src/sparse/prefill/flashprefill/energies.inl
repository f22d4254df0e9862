// The text of energies_baseline.cc, energies_avx2.cc and energies_avx512.cc: vectors of the compiler, cut
// into what the level has. All of it has internal linkage. At every level the exponential is that of the
// baseline, whose steps round twice: the bits are the same.
#include "kernels/attention/vec8_baseline.inl"
//
#include "kernels/attention/exp8.inl"

namespace {

constexpr int kWide = 16;
using F = float __attribute__((vector_size(4 * kWide)));
using I = int32_t __attribute__((vector_size(4 * kWide)));

inline F all(float x) { return F{} + x; }
inline F load(const float* p) {
  F x;
  memcpy(&x, p, sizeof x);
  return x;
}
inline void store(float* p, F x) { memcpy(p, &x, sizeof x); }
inline F most(F a, F b) { return a > b ? a : b; }

inline F exp_of(F x) {
  F8 half[2];
  memcpy(half, &x, sizeof half);
  half[0] = exp8(half[0]), half[1] = exp8(half[1]);
  memcpy(&x, half, sizeof x);
  return x;
}

// Logits of kRows rows and 32 blocks.
template <int kRows>
inline void dot_rows(
    const float* const* q, const float* means, int64_t stride, int dim, float* out, int64_t out_stride) {
  F sum[kRows][2];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = F{};
  for (int d = 0; d < dim; ++d) {
    const F a = load(means + d * stride), b = load(means + d * stride + kWide);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[r][0] += a * q[r][d], sum[r][1] += b * q[r][d];
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
    store(out + r * out_stride, sum[r][0]), store(out + r * out_stride + kWide, sum[r][1]);
}

void energies_of(const float* const* q,
                 const int32_t* seen,
                 int rows,
                 const float* means,
                 int64_t stride,
                 int blocks,
                 int dim,
                 float scale,
                 float* scratch,
                 float* energy) {
  const float none = -__builtin_inff();
  for (int64_t b = 0; b < blocks; b += 2 * kWide) {
    int r = 0;
    for (; r + 4 <= rows; r += 4)
      dot_rows<4>(q + r, means + b, stride, dim, scratch + r * stride + b, stride);
    for (; r < rows; ++r) dot_rows<1>(q + r, means + b, stride, dim, scratch + r * stride + b, stride);
  }
  F top = all(none);
  for (int r = 0; r < rows; ++r) {
    float* l = scratch + r * stride;
    const int64_t end = (blocks + kWide - 1) / kWide * kWide;
    for (int64_t b = seen[r] < blocks ? seen[r] : blocks; b < end; ++b) l[b] = none;
    for (int64_t b = 0; b < blocks; b += kWide) {
      const F x = load(l + b) * scale;
      store(l + b, x);
      top = most(x, top);
    }
  }
  float m = none;
  for (int i = 0; i < kWide; ++i) m = top[i] > m ? top[i] : m;
  if (m == none) m = 0;  // nothing is seen
  for (int64_t b = 0; b < blocks; b += kWide) {
    F sum = F{};
    for (int r = 0; r < rows; ++r) sum += exp_of(load(scratch + r * stride + b) - m);
    for (int i = 0; i < kWide && b + i < blocks; ++i) energy[b + i] = sum[i];
  }
}

}  // namespace
