// score.h -- what the bounds of units' keys promise a query. Plain types only: quest_avx2.cc and
// quest_avx512.cc must share no inline code with baseline files.
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

// The step's query by sign: [kv_heads * group, dim in eights, 2, 8], of eight channels max(q, 0), then min(q,
// 0); channels from dim on are 0.
struct SplitQuery {
  const float* data = nullptr;
  int kv_heads = 0, group = 0, dim = 0;
};
constexpr int64_t split_floats(int64_t dim) { return (dim + 7) / 8 * 16; }                 // of one head
void split_query(const float* q, int64_t stride, int64_t heads, int64_t dim, float* out);  // q [heads, dim]

// score[i], f32: the largest, over all query heads, of sum_d max(q_d * hi_d, q_d * lo_d) of units[i]; no key
// of the unit has a larger q.k. NaN where any sum is. Lane d % 8 sums in ascending d, positive and negative
// parts apart, then the lanes in pairs.
using ScoreUnits =
    void (*)(const SplitQuery& q, const BoundsFormat& f, const UnitBounds* units, int n, float* score);
void score_units_ref(
    const SplitQuery& q, const BoundsFormat& f, const UnitBounds* units, int n, float* score);
// dim a multiple of 8; both give the same bits, and the reference's up to its separate rounding of products.
void score_units_avx2(
    const SplitQuery& q, const BoundsFormat& f, const UnitBounds* units, int n, float* score);
void score_units_avx512(
    const SplitQuery& q, const BoundsFormat& f, const UnitBounds* units, int n, float* score);
ScoreUnits score_units(int dim);  // the fastest for isa() and this dimension

}  // namespace se::quest
