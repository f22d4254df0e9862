// base/half.h -- scalar conversions of narrow floats, round to nearest even. References and tails; the
// fast kernels convert in registers.
#pragma once
#include <bit>
#include <cstdint>

namespace se {

inline float bf16_to_f32(uint16_t h) { return std::bit_cast<float>(uint32_t(h) << 16); }

inline uint16_t f32_to_bf16(float x) {  // NaN stays NaN (quiet)
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float value = float(mantissa) * 0x1p-24f;  // zero and subnormals: exact
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

inline uint16_t f32_to_f16(float x) {  // overflow becomes infinity, as IEEE has it
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (a >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // >= 65520 rounds to infinity
  if (a < 0x38800000u) {                                  // below 2^-14: subnormal, or zero
    const float scaled = std::bit_cast<float>(a) + 0.5f;  // the ulp of [0.5, 1) is 2^-24: hardware rounds
    return uint16_t(sign | (std::bit_cast<uint32_t>(scaled) - 0x3f000000u));
  }
  return uint16_t(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
}

}  // namespace se
