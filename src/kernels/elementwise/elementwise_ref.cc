#include <bit>
#include <cmath>

#include "kernels/elementwise/elementwise_routines.h"

namespace se::elementwise {
namespace {

float exponential(float x) {
  x = kExpMax < x ? kExpMax : x;  // in this order NaN passes
  x = kExpMin > x ? kExpMin : x;
  const float n = std::nearbyint(x * kLog2e);
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, x));
  float p = kTaylor[0];
  for (int k = 1; k < 8; ++k) p = std::fma(p, r, kTaylor[k]);
  if (x != x) return x;
  return p * std::bit_cast<float>(uint32_t(int(n) + 127) << 23);
}

}  // namespace

void add_ref(const float* x, const float* y, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] + y[i];
}

void silu_mul_ref(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
}

void gelu_tanh_mul_ref(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const float z = gate[i], w = z * std::fma(z * z, kGelu3, kGelu1);
    out[i] = z / (1.0f + exponential(-w)) * up[i];
  }
}

}  // namespace se::elementwise
