// restore_ref.cc -- decoding in plain C++, for machines without AVX2 and as the twin of the fast tables.
#include "base/half.h"
#include "sparse/store/kivi/restore.h"

namespace se::kivi {
namespace {

float min_at(const Coded& c, int64_t i) {
  if (c.min_type == MinType::kF32) return static_cast<const float*>(c.min)[i];
  const uint16_t h = static_cast<const uint16_t*>(c.min)[i];
  return c.min_type == MinType::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
}
float code_at(const Coded& c, int token, int i) {
  const int bit = (token * c.dim + i) * c.bits;
  return float(c.codes[bit / 8] >> bit % 8 & ((1 << c.bits) - 1));
}

void keys(const Coded& c, float* out, int64_t stride) {
  for (int t = 0; t < c.n; ++t, out += stride) {
    for (int i = 0; i < c.dim; ++i) out[i] = min_at(c, i) + code_at(c, t, i) * f16_to_f32(c.scale[i]);
  }
}
void values(const Coded& c, float* out, int64_t stride) {
  for (int t = 0; t < c.n; ++t, out += stride) {
    for (int i = 0; i < c.dim; ++i) {
      const int64_t g = int64_t(t) * (c.dim / c.group) + i / c.group;
      out[i] = min_at(c, g) + code_at(c, t, i) * f16_to_f32(c.scale[g]);
    }
  }
}

}  // namespace

const Restore kRestoreRef = {keys, values};

}  // namespace se::kivi
