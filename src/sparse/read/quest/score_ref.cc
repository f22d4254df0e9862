// score_ref.cc -- the scores of units in plain C++: the twin of quest_avx2.cc and quest_avx512.cc, any
// dimension.
#include <limits>

#include "base/half.h"
#include "sparse/read/quest/score.h"

namespace se::quest {
namespace {

float read(Narrow type, const char* p, int d) {
  if (type == Narrow::kF32) return reinterpret_cast<const float*>(p)[d];
  const uint16_t h = reinterpret_cast<const uint16_t*>(p)[d];
  return type == Narrow::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
}

float sum_lanes(const float* a) { return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7])); }

float score(const SplitQuery& q, const BoundsFormat& f, const UnitBounds& b) {
  float best = -std::numeric_limits<float>::infinity();
  for (int a = 0; a < q.kv_heads * q.group; ++a) {
    const char *lo = b.lo + a / q.group * f.lo_stride, *hi = b.hi + a / q.group * f.hi_stride;
    const float* split = q.data + a * split_floats(q.dim);
    float up[8] = {}, down[8] = {};
    for (int d = 0; d < q.dim; ++d) {
      const float low = read(f.lo, lo, d), second = read(f.hi, hi, d);
      const float high = f.levels > 0 ? low + f.levels * second : second;
      up[d % 8] += split[d / 8 * 16 + d % 8] * high;
      down[d % 8] += split[d / 8 * 16 + d % 8 + 8] * low;
    }
    for (int i = 0; i < 8; ++i) up[i] += down[i];
    const float sum = sum_lanes(up);
    best = a == 0 || sum > best || sum != sum ? sum : best;  // NaN wins: such a unit ranks last
  }
  return best;
}

}  // namespace

void score_units_ref(const SplitQuery& q, const BoundsFormat& f, const UnitBounds* units, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = score(q, f, units[i]);
}

}  // namespace se::quest
