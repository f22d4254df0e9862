// score.h -- what the bounds of a unit's keys promise a query. Plain types only: quest_avx2.cc must share no
// inline code with baseline files.
#pragma once
#include <cstdint>

namespace se::quest {

enum class Narrow : uint8_t { kF32, kF16, kBF16 };

// Bounds of all KV heads of one unit: head h's [dim] lie h * stride bytes after head 0's.
struct UnitBounds {
  const char* lo = nullptr;
  const char* hi =
      nullptr;  // or the step: hi = lo + levels * step, product and sum rounded each (as a codec decodes)
};
struct BoundsFormat {
  Narrow lo = Narrow::kF32, hi = Narrow::kF32;
  int64_t lo_stride = 0, hi_stride = 0;
  float levels = 0;  // > 0: hi is a step
};
// The step's query: max(q, 0) and min(q, 0), f32 [kv_heads * group, dim] each.
struct SplitQuery {
  const float* pos = nullptr;
  const float* neg = nullptr;
  int kv_heads = 0, group = 0, dim = 0;
};

// The largest, over all query heads, of sum_d max(q_d * hi_d, q_d * lo_d): no key of the unit has a larger
// q.k. f32; lane d % 8 sums in ascending d, positive and negative parts apart, then the lanes in pairs.
using ScoreUnit = float (*)(const SplitQuery& q, const BoundsFormat& f, const UnitBounds& b);
float score_unit_ref(const SplitQuery& q, const BoundsFormat& f, const UnitBounds& b);
float score_unit_avx2(const SplitQuery& q,
                      const BoundsFormat& f,
                      const UnitBounds& b);  // dim a multiple of 8
ScoreUnit score_unit(int dim);               // the fastest for isa() and this dimension

}  // namespace se::quest
