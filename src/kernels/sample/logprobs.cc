#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/sample/ranking.h"
#include "kernels/sample/sample.h"
#include "kernels/sample/softmax_weights.h"

namespace se {

std::vector<int32_t> sample_detail::best(std::span<const float> logits, int64_t n) {
  const auto before = [&](int32_t a, int32_t b) {
    const float x = logits[size_t(a)], y = logits[size_t(b)];
    return x > y || (x == y && a < b);
  };
  std::vector<int32_t> heap;  // its front ranks last
  heap.reserve(size_t(std::min<int64_t>(n, int64_t(logits.size()))));
  float worst = 0;
  for (size_t i = 0; i < logits.size() && n > 0; ++i) {
    const bool full = int64_t(heap.size()) == n;
    if (full ? !(logits[i] > worst) : std::isnan(logits[i])) continue;  // ids grow, so that ties lose
    if (full) {
      std::pop_heap(heap.begin(), heap.end(), before);
      heap.pop_back();
    }
    heap.push_back(int32_t(i));
    std::push_heap(heap.begin(), heap.end(), before);
    worst = logits[size_t(heap.front())];
  }
  std::sort_heap(heap.begin(), heap.end(), before);
  return heap;
}

namespace {

// log(sum exp(logits)) = max + log(sum exp(logits - max)), the sum in double over 8 lanes.
struct LogSum {
  float max;
  double log_of_rest;
  explicit LogSum(std::span<const float> logits) : max(logits[size_t(argmax(logits))]) {
    double lanes[8] = {};
    for (size_t i = 0; i < logits.size(); ++i)
      lanes[i % 8] += double(sample_detail::exp_nonpositive(logits[i] - max));
    double sum = 0;
    for (double lane : lanes) sum += lane;
    log_of_rest = std::log(sum);
  }
  float of(float logit) const {
    if (std::isnan(logit)) return -std::numeric_limits<float>::infinity();
    if (std::isinf(max)) return logit == max ? 0 : -std::numeric_limits<float>::infinity();
    return float(double(logit) - double(max) - log_of_rest);
  }
};

}  // namespace

float logprob_of(std::span<const float> logits, int32_t id) {
  SE_CHECK(id >= 0 && size_t(id) < logits.size(), "logprob_of: id {} of {}", id, logits.size());
  return LogSum(logits).of(logits[size_t(id)]);
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int n) {
  const LogSum sum(logits);
  std::vector<TokenLogprob> out;
  for (int32_t id : sample_detail::best(logits, n)) out.push_back({id, sum.of(logits[size_t(id)])});
  return out;
}

}  // namespace se
