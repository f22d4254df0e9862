#include <algorithm>
#include <cmath>
#include <limits>

#include "sparse/prefill/flashprefill/choose.h"

namespace se::flashprefill {

std::vector<double> energies_ref(const Rule& rule, const Tile& tile, const float* means) {
  const int64_t active = tile.active(rule.block);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  std::vector<double> logits(size_t(tile.rows * active), kNone), energy(size_t(active), 0.0);
  double top = kNone;
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t b = 0; b < active; ++b) {
      if (tile.place(r) < b * rule.block) continue;  // its first key is not seen
      double sum = 0;
      for (int d = 0; d < tile.dim; ++d) sum += double(tile.q[r][d]) * double(means[b * tile.dim + d]);
      logits[size_t(r * active + b)] = double(tile.scale) * sum;
      top = std::max(top, double(tile.scale) * sum);
    }
  }
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t b = 0; b < active; ++b) {
      const double l = logits[size_t(r * active + b)];
      if (l != kNone) energy[size_t(b)] += std::exp(l - top);
    }
  }
  return energy;
}

std::vector<double> means_ref(const float* x, int64_t tokens, int64_t dim, int64_t block) {
  std::vector<double> means(size_t(tokens / block * dim), 0.0);
  for (int64_t t = 0; t < tokens / block * block; ++t) {
    for (int64_t d = 0; d < dim; ++d) means[size_t(t / block * dim + d)] += double(x[t * dim + d]);
  }
  for (double& m : means) m /= double(block);
  return means;
}

}  // namespace se::flashprefill
