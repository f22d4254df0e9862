// kernels/elementwise/elementwise_routines.h -- spans of the elementwise ops per instruction set, all with
// the same bits (internal). silu(z) = z / (1 + exp(-z)); gelu(z) = z / (1 + exp(-w)) with w = z (kGelu1 +
// kGelu3 z^2), the tanh of the formula in other words and without its cancellation;
//   exp(x): x clamped to [-87, 88]; n = round(x log2 e); r = x - n ln 2 in two fused steps; Horner over the
//   Taylor series to r^7 (|r| <= 0.35: its rest is 5e-9) with fused steps; times 2^n through the exponent
//   bits.
#pragma once
#include <cstdint>

namespace se::elementwise {

using BinaryFn = void (*)(const float* x, const float* y, int64_t n, float* out);
void add_ref(const float* x, const float* y, int64_t n, float* out);
void add_avx2(const float* x, const float* y, int64_t n, float* out);
void add_avx512(const float* x, const float* y, int64_t n, float* out);
void silu_mul_ref(const float* gate, const float* up, int64_t n, float* out);
void silu_mul_avx2(const float* gate, const float* up, int64_t n, float* out);
void silu_mul_avx512(const float* gate, const float* up, int64_t n, float* out);
void gelu_tanh_mul_ref(const float* gate, const float* up, int64_t n, float* out);
void gelu_tanh_mul_avx2(const float* gate, const float* up, int64_t n, float* out);
void gelu_tanh_mul_avx512(const float* gate, const float* up, int64_t n, float* out);

inline constexpr float kLog2e = 1.44269504088896341f;
inline constexpr float kLn2High = 0.693359375f;  // 355 / 512: n * kLn2High is exact for |n| < 2^15
inline constexpr float kLn2Low = -2.12194440054690583e-4f;
inline constexpr float kExpMin = -87.f, kExpMax = 88.f;
inline constexpr float kGelu1 = 1.59576912160573071f;    // 2 sqrt(2 / pi)
inline constexpr float kGelu3 = 0.0713548162726002527f;  // 0.044715 of it
inline constexpr float kTaylor[] = {1.f / 5040, 1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 1.f / 2, 1.f, 1.f};

}  // namespace se::elementwise
