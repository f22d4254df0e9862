// restore.h -- codes back to numbers: the inner loop of decoding, one table per instruction set. Plain types
// only: restore_avx2.cc must share no inline code with baseline files. All tables agree bit for bit.
#pragma once
#include <cstdint>

namespace se::kivi {

// out[i] = low + code[i] * step, product and sum rounded each, i < n (a multiple of 8); code[i] takes `bits`
// bits of `codes`, lowest first.
struct Restore {
  void (*channels)(const uint8_t* codes, int n, int bits, const float* low, const float* step, float* out);
  void (*group)(const uint8_t* codes, int n, int bits, float low, float step, float* out);  // one for all
};
extern const Restore kRestoreRef, kRestoreAvx2;

}  // namespace se::kivi
