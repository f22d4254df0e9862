#include "sparse/read/quest/score.h"

#include <algorithm>

#include "device/cpu/isa.h"

namespace se::quest {

void split_query(const float* q, int64_t stride, int64_t heads, int64_t dim, float* out) {
  for (int64_t h = 0; h < heads; ++h, q += stride, out += split_floats(dim)) {
    std::fill_n(out, split_floats(dim), 0.f);
    for (int64_t d = 0; d < dim; ++d) out[d / 8 * 16 + d % 8 + (q[d] > 0 ? 0 : 8)] = q[d];
  }
}

ScoreUnits score_units(int dim) {
  if (dim % 8 != 0 || cpu::isa() < cpu::Isa::kAvx2) return &score_units_ref;
  return cpu::isa() >= cpu::Isa::kAvx512 ? &score_units_avx512 : &score_units_avx2;
}

}  // namespace se::quest
