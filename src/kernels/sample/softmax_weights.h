// kernels/sample/softmax_weights.h -- exp(x) for x <= 0 in plain f32 products and sums (no fused steps, no
// libm), so that every machine draws the same token and the compiler vectorises the loop at any level.
// Internal to this folder.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace se::sample_detail {

// Relative error below 3e-7; exp(0) = 1 exactly; below -87, as for -inf and NaN: 0.
inline float exp_nonpositive(float x) {
  const float safe = x > -87.0f ? x : -87.0f;
  const float shifted = safe * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer in the low bits
  const float n = shifted - 12582912.0f;
  const float r =
      (safe - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, the first product exact
  float p = 1.f / 5040;
  p = p * r + 1.f / 720;
  p = p * r + 1.f / 120;
  p = p * r + 1.f / 24;
  p = p * r + 1.f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.f;
  p = p * r + 1.f;
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u;  // n to the exponent field
  const float y = p * std::bit_cast<float>(power);
  return x > -87.0f ? y : 0.0f;
}

// The least exponent (logit - max) / temperature that keeps its weight; min_p <= 0: all that exp_nonpositive
// takes.
inline float lowest_exponent(float min_p) {
  return min_p > 0 ? std::min(0.0f, float(std::log(double(min_p)))) : -87.0f;
}

}  // namespace se::sample_detail
