#include "kernels/sample/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "kernels/sample/softmax_weights.h"

namespace se {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

std::vector<float> normals(size_t n, float scale, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> v(n);
  for (float& x : v) x = rng.normal() * scale;
  return v;
}

std::vector<float> logs(std::vector<double> p) {
  std::vector<float> v;
  for (double x : p) v.push_back(float(std::log(x)));
  return v;
}

std::set<int32_t> reachable(const std::vector<float>& logits, SampleParams p, int draws = 3000) {
  std::set<int32_t> ids;
  for (int i = 0; i < draws; ++i) ids.insert(sample(logits, p, uint64_t(i)));
  return ids;
}

using Ids = std::set<int32_t>;

TEST(Argmax, TakesTheLowestIdAmongEqualsAndSkipsNan) {
  EXPECT_EQ(argmax(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(argmax(std::vector<float>{kNan, -kInf, kNan}), 1);
  EXPECT_EQ(argmax(std::vector<float>{kNan, -2, -1, kNan}), 2);
  EXPECT_EQ(argmax(std::vector<float>{-1, kInf, kInf}), 1);
  EXPECT_DEATH(argmax(std::vector<float>{kNan}), "none of 1 logits");
}

TEST(Sample, TopKOfOneAndTemperatureZeroEqualArgmax) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    auto logits = normals(257, 3, seed);
    logits[200] = logits[20] = *std::max_element(logits.begin(), logits.end());  // a tie
    EXPECT_EQ(sample(logits, {.temperature = 0}, seed), argmax(logits));
    EXPECT_EQ(sample(logits, {.temperature = 1.5f, .top_k = 1, .seed = seed}, seed), argmax(logits));
    EXPECT_EQ(sample(logits, {.temperature = 0.7f, .top_p = 1e-9f, .seed = seed}, seed), argmax(logits));
    EXPECT_EQ(sample(logits, {.temperature = 1, .top_k = 5, .top_p = 0, .seed = seed}, seed), argmax(logits));
  }
}

TEST(Sample, FollowsSeedChoiceAndPositionAlone) {
  const auto logits = normals(1000, 1, 4);
  const SampleParams p{.temperature = 1, .seed = 11, .choice = 2};
  const int32_t id = sample(logits, p, 5);
  (void)sample(normals(50, 1, 5), p, 9);
  EXPECT_EQ(sample(logits, p, 5), id);
  int differ[3] = {};
  for (uint64_t i = 0; i < 50; ++i) {
    const int32_t base = sample(logits, p, i);
    SampleParams other = p;
    other.seed = 12;
    differ[0] += sample(logits, other, i) != base;
    other = p, other.choice = 3;
    differ[1] += sample(logits, other, i) != base;
    differ[2] += sample(logits, p, i + 1) != base;
  }
  for (int d : differ) EXPECT_GT(d, 40);
}

// Chi-square of 40000 draws against the softmax in double: 99.9 % quantile of 11 and of 3 degrees of freedom.
void expect_distribution(const std::vector<float>& logits,
                         const SampleParams& p,
                         const std::vector<double>& want,
                         double quantile) {
  constexpr int kDraws = 40000;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) ++counts[size_t(sample(logits, p, uint64_t(i)))];
  double chi = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "id " << i;
      continue;
    }
    const double expected = want[i] * kDraws;
    chi += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi, quantile);
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  for (float l : logits) p.push_back(std::exp(double(l) / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

TEST(Sample, DrawsFromTheTemperedSoftmax) {
  const auto logits = normals(12, 1, 7);
  for (float t : {0.5f, 1.0f, 2.0f})
    expect_distribution(logits, {.temperature = t, .seed = 3}, softmax(logits, t), 31.26);
}

TEST(Sample, DrawsFromTheRenormalisedRestAfterEachFilter) {
  const auto logits = logs({0.05, 0.4, 0.1, 0.25, 0.02, 0.18});
  const std::vector<double> best4{0, 0.4 / 0.93, 0.1 / 0.93, 0.25 / 0.93, 0, 0.18 / 0.93};
  expect_distribution(logits, {.temperature = 1, .top_k = 4, .seed = 1}, best4, 16.27);
  expect_distribution(logits, {.temperature = 1, .top_p = 0.9f, .seed = 2}, best4, 16.27);
  expect_distribution(logits, {.temperature = 1, .min_p = 0.24f, .seed = 3}, best4, 16.27);
}

TEST(Sample, CutsAreExactOnHandMadeExamples) {
  const auto p = logs({0.05, 0.4, 0.1, 0.25, 0.02, 0.18});
  EXPECT_EQ(reachable(p, {.temperature = 1, .top_k = 2}), (Ids{1, 3}));
  EXPECT_EQ(reachable(p, {.temperature = 1, .top_p = 0.39f}), (Ids{1}));
  EXPECT_EQ(reachable(p, {.temperature = 1, .top_p = 0.41f}), (Ids{1, 3}));
  EXPECT_EQ(reachable(p, {.temperature = 1, .top_p = 0.82f}), (Ids{1, 3, 5}));
  EXPECT_EQ(reachable(p, {.temperature = 1, .top_p = 0.84f}), (Ids{1, 2, 3, 5}));
  EXPECT_EQ(reachable(p, {.temperature = 1, .min_p = 0.46f}), (Ids{1, 3}));
  EXPECT_EQ(reachable(p, {.temperature = 1, .min_p = 0.44f}), (Ids{1, 3, 5}));
  EXPECT_EQ(reachable(logs({0.5, 0.25, 0.125, 0.125}), {.temperature = 1, .min_p = 0.5f}), (Ids{0, 1}));
  EXPECT_EQ(reachable(p, {.temperature = 1, .min_p = 1}), (Ids{1}));
  // The temperature comes first: at 1/2 the probabilities are squared, 0.16 : 0.0625 : 0.0324 : ...
  EXPECT_EQ(reachable(p, {.temperature = 0.5f, .min_p = 0.38f}), (Ids{1, 3}));
  EXPECT_EQ(reachable(p, {.temperature = 0.5f, .min_p = 0.4f}), (Ids{1}));
  // top_p counts what min_p and top_k have left: of 0.4 + 0.25 + 0.18, the first two are 0.783.
  EXPECT_EQ(reachable(p, {.temperature = 1, .top_k = 3, .top_p = 0.78f}), (Ids{1, 3}));
  EXPECT_EQ(reachable(p, {.temperature = 1, .top_k = 3, .top_p = 0.79f}), (Ids{1, 3, 5}));
  EXPECT_EQ(reachable(p, {.temperature = 1, .top_p = 0.78f, .min_p = 0.44f}), (Ids{1, 3}));
  EXPECT_EQ(reachable(p, {.temperature = 1, .top_p = 0.79f, .min_p = 0.44f}), (Ids{1, 3, 5}));
}

TEST(Sample, TiesAtACutGoToTheLowerId) {
  const std::vector<float> flat(600, 2.0f);
  const auto first = [](int32_t n) {
    Ids ids;
    for (int32_t i = 0; i < n; ++i) ids.insert(i);
    return ids;
  };
  EXPECT_EQ(reachable(flat, {.temperature = 1, .top_k = 3}), first(3));
  EXPECT_EQ(reachable(flat, {.temperature = 1, .top_p = 2.5f / 600}), first(3));
  EXPECT_EQ(reachable(flat, {.temperature = 1, .top_k = 10, .top_p = 0.25f}), first(3));
}

TEST(Sample, TopPWithoutAndWithAllOfTopKAgreeOnRandomLogits) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const auto logits = normals(700, seed % 2 ? 1.f : 4.f, seed);
    SampleParams p{.temperature = 0.8f, .top_p = 0.6f, .seed = seed};
    SampleParams sorted = p;
    sorted.top_k = 699;  // one less than all: the path over a sorted list
    for (uint64_t i = 0; i < 40; ++i)
      ASSERT_EQ(sample(logits, p, i), sample(logits, sorted, i)) << seed << " " << i;
  }
}

TEST(Sample, InfiniteAndMissingLogitsDoNotSpread) {
  std::vector<float> logits{-kInf, kNan, 1, -kInf, 1};
  EXPECT_EQ(reachable(logits, {.temperature = 1}), (Ids{2, 4}));
  EXPECT_EQ(reachable(logits, {.temperature = 1, .top_k = 4}), (Ids{2, 4}));
  EXPECT_EQ(reachable(logits, {.temperature = 1, .top_p = 0.99f}), (Ids{2, 4}));
  EXPECT_EQ(sample(std::vector<float>{1, kInf, kInf}, {.temperature = 1}, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{kNan, -kInf}, {.temperature = 1}, 0), 1);
  EXPECT_EQ(reachable({0, -1000}, {.temperature = 1e30f}), (Ids{0, 1}));
}

TEST(SoftmaxWeights, AreWithinThreeTenMillionthsOfExp) {
  EXPECT_EQ(sample_detail::exp_nonpositive(0), 1.0f);
  EXPECT_EQ(sample_detail::exp_nonpositive(-kInf), 0.0f);
  EXPECT_EQ(sample_detail::exp_nonpositive(kNan), 0.0f);
  for (float x = -86.9f; x <= 0; x += 0.00371f) {
    const double want = std::exp(double(x));
    ASSERT_NEAR(sample_detail::exp_nonpositive(x), want, 3e-7 * want) << x;
  }
}

TEST(Logprobs, AreTheRawLogSoftmaxBestFirst) {
  auto logits = normals(5000, 3, 1);
  logits[4000] = logits[17];
  const auto p = softmax(logits, 1);
  for (int32_t id : {0, 17, 4999}) EXPECT_NEAR(logprob_of(logits, id), std::log(p[size_t(id)]), 1e-5);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[size_t(a)] > logits[size_t(b)];
  });
  for (int n : {0, 1, 5, 4999, 5000, 6000}) {
    const auto top = top_logprobs(logits, n);
    ASSERT_EQ(top.size(), size_t(std::min(n, 5000)));
    for (size_t i = 0; i < top.size(); ++i) {
      ASSERT_EQ(top[i].id, order[i]);
      ASSERT_EQ(top[i].logprob, logprob_of(logits, order[i]));
      if (i > 20) break;
    }
  }
}

TEST(Logprobs, NanRanksLastAndHasNoProbability) {
  const std::vector<float> logits{kNan, 0, -kInf, 0};
  const auto top = top_logprobs(logits, 4);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].id, 1);
  EXPECT_EQ(top[1].id, 3);
  EXPECT_EQ(top[2].id, 2);
  EXPECT_NEAR(top[0].logprob, -std::log(2.0), 1e-6);
  EXPECT_EQ(logprob_of(logits, 0), -kInf);
}

}  // namespace
}  // namespace se
