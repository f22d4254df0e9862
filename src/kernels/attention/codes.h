// kernels/attention/codes.h -- how a codec says where its codes lie, for levels that multiply them as they
// are. Plain types only.
#pragma once
#include <cstdint>

namespace se::cpu {

enum class RowType : uint8_t { kF32, kF16, kBF16 };

// k4, k2: integers from 0 on, lowest bits first. kE4M3, kE5M2: 8-bit floats (OCP), E4M3 without infinities.
enum class CodeType : uint8_t { k4, k2, kE4M3, kE5M2 };
inline constexpr int bits_of(CodeType type) {
  return type == CodeType::k4 ? 4 : type == CodeType::k2 ? 2 : 8;
}

// Tokens of one KV head as a codec keeps them. Integers: a number is min + code * step, keys with a min and a
// step per channel, values with one per token and group of channels. Floats: a number is value(code) * step,
// one step for the key of a token and one for its value.
struct CodeFormat {
  CodeType type = CodeType::k4;
  int k_dim = 0, v_dim = 0;     // multiples of 16
  int group = 0;                // integers: a multiple of 16; floats: v_dim
  RowType min = RowType::kF16;  // of integers: type of the minima
};
struct CodePiece {
  int n = 0;                                        // tokens
  const uint8_t *k = nullptr, *v = nullptr;         // [n, dim * bits / 8]
  const void *k_min = nullptr, *v_min = nullptr;    // integers: [k_dim]; [n, v_dim / group]
  const void *k_step = nullptr, *v_step = nullptr;  // the same, F16; floats: F32 [n] both
};
inline constexpr int kMostCodeDim = 256;

}  // namespace se::cpu
