#include "kernels/topk/topk_ref.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace se::ref {

void top_k(std::span<const float> score, int64_t k, std::vector<int32_t>& out) {
  out.resize(score.size());
  std::iota(out.begin(), out.end(), 0);
  std::stable_sort(out.begin(), out.end(), [&](int32_t a, int32_t b) {
    const float x = score[size_t(a)], y = score[size_t(b)];
    if (std::isnan(x) || std::isnan(y)) return !std::isnan(x) && std::isnan(y);
    return x > y;
  });
  out.resize(size_t(std::clamp<int64_t>(k, 0, int64_t(score.size()))));
  std::sort(out.begin(), out.end());
}

void max_pool(std::span<const float> score, int width, std::span<float> out) {
  const int64_t n = int64_t(score.size());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = std::max<int64_t>(0, i - width / 2), end = std::min<int64_t>(n, i + width / 2 + 1);
    out[size_t(i)] = *std::max_element(score.begin() + begin, score.begin() + end);
  }
}

}  // namespace se::ref
