#include "kernels/sample/sample.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/rng.h"
#include "kernels/sample/ranking.h"
#include "kernels/sample/softmax_weights.h"

namespace se {
namespace {

using sample_detail::exp_nonpositive;
constexpr float kGreedyBelow = 1e-5f;  // a temperature that f32 softmax cannot tell from zero
constexpr size_t kBlock = 256;

// exp((logit - max) / T), or 0 where min_p removes it. min_p is compared as (logit - max) / T >= log(min_p),
// both rounded to f32, so that ratios such as 1/2 given as logarithms compare equal.
class Weigher {
 public:
  Weigher(const SampleParams& p, float max)
      : temperature_(p.temperature), max_(max), lowest_(sample_detail::lowest_exponent(p.min_p)) {}
  float operator()(float logit) const {
    const float z = (logit - max_) / temperature_;
    return z >= lowest_ ? exp_nonpositive(z) : 0.0f;
  }

 private:
  float temperature_, max_, lowest_;
};

double sum_of(std::span<const float> weights) {
  double lanes[8] = {};
  for (size_t i = 0; i < weights.size(); ++i) lanes[i % 8] += double(weights[i]);
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

// The index where the running sum of the weights passes u times their total, u in [0, 1). At least one is
// positive.
size_t draw(std::span<const float> weights, double u) {
  static thread_local std::vector<double> sums;  // by block of kBlock; kept, for the vocabulary is large
  sums.clear();
  double total = 0;
  for (size_t b = 0; b < weights.size(); b += kBlock) {
    sums.push_back(sum_of(weights.subspan(b, std::min(kBlock, weights.size() - b))));
    total += sums.back();
  }
  double rest = u * total;
  size_t block = 0, last = 0;  // the last block with any weight catches what rounding leaves over
  for (size_t b = 0; b < sums.size(); ++b) {
    if (sums[b] > 0) last = b;
  }
  while (block < last && rest >= sums[block]) rest -= sums[block++];
  size_t chosen = 0;
  for (size_t i = block * kBlock; i < std::min((block + 1) * kBlock, weights.size()); ++i) {
    if (weights[i] <= 0) continue;
    chosen = i;
    rest -= double(weights[i]);
    if (rest < 0) break;
  }
  return chosen;
}

// Zeroes all but the fewest best-ranked weights that reach top_p of their sum. Weights fall into buckets by
// their exponent (each within a factor of two); only the bucket in which the sum is reached has to be sorted.
void keep_top_p(std::span<const float> logits, float top_p, std::span<float> weights) {
  const auto bucket = [](float w) {
    return size_t(std::bit_cast<uint32_t>(w) >> 23);
  };  // w in [0, 1]: <= 127
  std::array<double, 128> sums{};
  for (float w : weights) sums[bucket(w)] += double(w);
  double total = 0, reached = 0;
  for (double s : sums) total += s;
  const double wanted = double(top_p) * total;
  size_t cut = 127;
  while (cut > 1 && reached + sums[cut] < wanted) reached += sums[cut--];
  std::vector<int32_t> ids;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0 && bucket(weights[i]) == cut) ids.push_back(int32_t(i));
    if (bucket(weights[i]) < cut) weights[i] = 0;
  }
  std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits[size_t(a)], y = logits[size_t(b)];
    return x > y || (x == y && a < b);
  });
  for (int32_t id : ids) {
    if (reached >= wanted) weights[size_t(id)] = 0;
    reached += double(weights[size_t(id)]);
  }
}

int32_t sample_among_best(std::span<const float> logits,
                          const SampleParams& p,
                          const Weigher& weigh,
                          double u) {
  std::vector<int32_t> ids = sample_detail::best(logits, p.top_k);
  std::vector<float> weights;
  for (int32_t id : ids) weights.push_back(weigh(logits[size_t(id)]));
  const double wanted = double(p.top_p) * sum_of(weights);
  double reached = 0;
  size_t kept = 0;
  while (kept < ids.size() && (kept == 0 || p.top_p >= 1 || reached < wanted))
    reached += double(weights[kept++]);
  ids.resize(kept);
  std::sort(ids.begin(), ids.end());  // all paths draw in the order of ids
  weights.clear();
  for (int32_t id : ids) weights.push_back(weigh(logits[size_t(id)]));
  return ids[draw(weights, u)];
}

}  // namespace

int32_t argmax(std::span<const float> logits) {
  int64_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (best < 0 ? !std::isnan(logits[i]) : logits[i] > logits[size_t(best)]) best = int64_t(i);
  }
  SE_CHECK(best >= 0, "argmax: none of {} logits is a number", logits.size());
  return int32_t(best);
}

int32_t sample(std::span<const float> logits, const SampleParams& p, uint64_t position) {
  const int32_t best = argmax(logits);
  const float max = logits[size_t(best)];
  if (!(p.temperature >= kGreedyBelow) || p.top_k == 1 || std::isinf(max)) return best;
  const double u = uniform(p.seed, p.choice, position);
  const Weigher weigh(p, max);
  if (p.top_k > 0 && size_t(p.top_k) < logits.size()) return sample_among_best(logits, p, weigh, u);
  static thread_local std::vector<float> weights;  // kept, for the vocabulary is large
  weights.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) weights[i] = weigh(logits[i]);
  if (p.top_p < 1) keep_top_p(logits, p.top_p, weights);
  return int32_t(draw(weights, u));
}

}  // namespace se
