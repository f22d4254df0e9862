// kernels/attention/codes.h -- how a codec says where its codes lie, for levels that multiply them as they
// are. Plain types only.
#pragma once
#include <cstdint>

namespace se::cpu {

enum class RowType : uint8_t { kF32, kF16, kBF16 };

// Tokens of one KV head as a codec keeps them, a number being min + code * step: keys with a min and a step
// per channel, values with one per token and group of channels. Codes lie lowest bits first.
struct CodeFormat {
  int bits = 4, k_dim = 0, v_dim = 0, group = 0;  // bits: 4 or 2; dims and group: multiples of 16
  RowType min = RowType::kF16;                    // type of the minima; steps are F16
};
struct CodePiece {
  int n = 0;                                      // tokens
  const uint8_t *k = nullptr, *v = nullptr;       // [n, dim * bits / 8]
  const void *k_min = nullptr, *v_min = nullptr;  // [k_dim]; [n, v_dim / group]
  const void *k_step = nullptr, *v_step = nullptr;
};
inline constexpr int kMostCodeDim = 256;

}  // namespace se::cpu
