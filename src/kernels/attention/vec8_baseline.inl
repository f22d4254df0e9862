// kernels/attention/vec8_baseline.inl -- eight floats as a vector of the compiler, for machines without AVX2.
// Same operations and same orders as vec8_avx2.inl, but fma8 rounds twice: bits differ between the two
// levels.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // no F8 crosses a call: everything here is inlined

namespace {

using F8 = float __attribute__((vector_size(32)));
using I8 = int32_t __attribute__((vector_size(32)));

inline F8 set8(float x) { return F8{x, x, x, x, x, x, x, x}; }
inline F8 zero8() { return set8(0); }
inline F8 load8(const float* p) {
  F8 x;
  memcpy(&x, p, sizeof x);
  return x;
}
inline void store8(float* p, F8 x) { memcpy(p, &x, sizeof x); }
inline F8 load8_f16(const uint16_t* p) {
  uint16_t h[8];
  memcpy(h, p, sizeof h);
  F8 x;
  for (int i = 0; i < 8; ++i) x[i] = se::f16_to_f32(h[i]);
  return x;
}
inline F8 load8_bf16(const uint16_t* p) {
  uint16_t h[8];
  memcpy(h, p, sizeof h);
  F8 x;
  for (int i = 0; i < 8; ++i) x[i] = se::bf16_to_f32(h[i]);
  return x;
}
inline F8 add8(F8 a, F8 b) { return a + b; }
inline F8 sub8(F8 a, F8 b) { return a - b; }
inline F8 mul8(F8 a, F8 b) { return a * b; }
inline F8 div8(F8 a, F8 b) { return a / b; }
inline F8 fma8(F8 a, F8 b, F8 c) { return a * b + c; }
inline F8 max8(F8 a, F8 b) { return a > b ? a : b; }              // b where either is NaN
inline F8 min8(F8 a, F8 b) { return a < b ? a : b; }              // b where either is NaN
inline F8 round8(F8 a) { return (a + 12582912.f) - 12582912.f; }  // 1.5 * 2^23: for |a| < 2^22, ties to even
inline F8 pow2_8(F8 n) {                                          // 2^n for whole n in [-126, 127]
  const I8 bits = (__builtin_convertvector(n, I8) + 127) << 23;
  F8 x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
inline F8 zero_below8(F8 y, F8 x, F8 floor) { return x < floor ? zero8() : y; }  // y, but 0 where x < floor

// Sum of the lanes: ((0+1)+(2+3)) + ((4+5)+(6+7)).
inline float sum8(F8 a) { return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7])); }
inline void store_sums4(float* out, F8 a, F8 b, F8 c, F8 d) {
  out[0] = sum8(a), out[1] = sum8(b), out[2] = sum8(c), out[3] = sum8(d);
}
inline float largest8(F8 a) {
  float m = a[0];
  for (int i = 1; i < 8; ++i) m = m > a[i] ? m : a[i];
  return m;
}
inline float log1(float x) { return __builtin_logf(x); }

}  // namespace
