// restore_ref.cc -- decoding in plain C++, for machines without AVX2 and as the twin of restore_avx2.cc.
#include "sparse/store/kivi/restore.h"

namespace se::kivi {
namespace {

float code_at(const uint8_t* codes, int i, int bits) {
  return float(codes[i * bits / 8] >> (i * bits % 8) & ((1 << bits) - 1));
}
void channels(const uint8_t* codes, int n, int bits, const float* low, const float* step, float* out) {
  for (int i = 0; i < n; ++i) out[i] = low[i] + code_at(codes, i, bits) * step[i];
}
void group(const uint8_t* codes, int n, int bits, float low, float step, float* out) {
  for (int i = 0; i < n; ++i) out[i] = low + code_at(codes, i, bits) * step;
}

}  // namespace

const Restore kRestoreRef = {channels, group};

}  // namespace se::kivi
