// The text of energies_baseline.cc, energies_avx2.cc and energies_avx512.cc: vectors of the compiler, cut
// into what the level has. All of it has internal linkage.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wpsabi"  // no vector crosses a call: everything here is inlined

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

// e^x for x <= 0, as exp8.inl makes it but for the rounding of products: 0 below -87.3, NaN stays.
inline F exp_of(F x) {
  const F low = all(-87.3f);
  const F c = x < low ? low : x;
  const F n = (c * 1.44269504088896341f + 12582912.f) - 12582912.f;
  const F r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
  F p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + (r + 1.f);
  const I bits = (__builtin_convertvector(n, I) + 127) << 23;
  F scale;
  memcpy(&scale, &bits, sizeof scale);
  return x < low ? F{} : p * scale;
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
