// restore.h -- codes back to numbers, one table per instruction set. Plain types only: restore_avx2.cc and
// restore_avx512.cc must share no inline code with baseline files. All tables agree bit for bit.
#pragma once
#include <cstdint>

namespace se::kivi {

enum class MinType : uint8_t { kF32, kF16, kBF16 };

// n tokens of one KV head: codes [n, dim * bits / 8], lowest bits first. dim is a multiple of 8.
struct Coded {
  const uint8_t* codes = nullptr;
  const void* min = nullptr;  // of keys [dim], of values [n, dim / group]; scale alike, F16
  const uint16_t* scale = nullptr;
  int n = 0, dim = 0, group = 0, bits = 4;
  MinType min_type = MinType::kF32;
};
// out f32 [n, dim], `stride` floats between tokens: min + code * scale, product and sum rounded each.
struct Restore {
  void (*keys)(const Coded&, float* out, int64_t stride);
  void (*values)(const Coded&, float* out, int64_t stride);
};
extern const Restore kRestoreRef, kRestoreAvx2, kRestoreAvx512;

}  // namespace se::kivi
