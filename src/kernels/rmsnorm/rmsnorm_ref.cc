#include <cmath>

#include "kernels/rmsnorm/rmsnorm_routines.h"

namespace se::rmsnorm {

void row_ref(const float* x, const float* w, float eps, int64_t dim, float* out) {
  float lanes[16] = {};
  for (int64_t i = 0; i < dim; ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  for (int width = 8; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  const float scale = 1.0f / std::sqrt(lanes[0] / float(dim) + eps);
  for (int64_t i = 0; i < dim; ++i) out[i] = x[i] * scale * w[i];
}

}  // namespace se::rmsnorm
