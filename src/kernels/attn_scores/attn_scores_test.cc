#include "kernels/attn_scores/attn_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "device/cpu/isa.h"
#include "device/cpu/thread_pool.h"
#include "kernels/attn_scores/attn_scores_ref.h"

namespace se {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class AttnScores : public ::testing::TestWithParam<cpu::Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > cpu::best_isa()) GTEST_SKIP();
    cpu::set_isa_for_test(GetParam());
  }
  void TearDown() override { cpu::set_isa_for_test(cpu::best_isa()); }

  // Scores of a copy of the logits [queries, q_heads, n].
  std::vector<float> scores(const ScoreSpec& spec,
                            std::vector<float> z,
                            const std::vector<int64_t>& last,
                            int q_heads,
                            int kv_heads,
                            bool slow,
                            int threads = 1,
                            float scale = 0.5f) {
    const int64_t queries = int64_t(last.size()), n = queries ? int64_t(z.size()) / queries / q_heads : 5;
    const int64_t heads = spec.per_kv_head ? kv_heads : 1;
    std::vector<float> out(size_t(heads * n), NAN);
    const TensorView in = TensorView::of(z.data(), DType::kF32, {queries, q_heads, n});
    const TensorView to = TensorView::of(out.data(), DType::kF32, {heads, n});
    ThreadPool pool(threads);
    Stream stream(pool);
    if (slow)
      ref::attn_scores(spec, in, last, scale, kv_heads, to);
    else
      attn_scores(spec, in, last, scale, kv_heads, to, stream);
    return out;
  }
};

TEST_P(AttnScores, EqualsTheSlowTwinForEverySpec) {
  Rng rng(3);
  for (int64_t n : {1, 9, 40, 1500}) {
    const int q_heads = 6, kv_heads = 2;
    std::vector<int64_t> last{n / 3, n - 1, 0, n - 2, n - 1};
    std::vector<float> z(last.size() * size_t(q_heads * n));
    for (float& x : z) x = rng.normal() * 8;
    for (int bits = 0; bits < 8; ++bits) {
      for (Reduce over_queries : {Reduce::kMax, Reduce::kMean, Reduce::kSum}) {
        for (Reduce over_heads : {Reduce::kMax, Reduce::kMean, Reduce::kSum}) {
          ScoreSpec spec;
          spec.prob = bits & 1, spec.full_denominator = bits & 2, spec.per_kv_head = bits & 4;
          spec.over_queries = over_queries, spec.over_heads = over_heads;
          spec.skip_first = int(n / 5), spec.skip_last = int(n / 4);
          const auto want = scores(spec, z, last, q_heads, kv_heads, true);
          const auto got = scores(spec, z, last, q_heads, kv_heads, false);
          for (size_t i = 0; i < got.size(); ++i) {
            if (std::isinf(want[i]))
              ASSERT_EQ(got[i], want[i]);
            else
              ASSERT_NEAR(got[i], want[i], 4e-6f * (1 + std::abs(want[i]))) << n << " " << bits << " " << i;
          }
          EXPECT_EQ(got, scores(spec, z, last, q_heads, kv_heads, false, 3));  // threads do not show
        }
      }
    }
  }
}

TEST_P(AttnScores, ProbabilitiesOfAQuerySumToOneOverItsCandidates) {
  Rng rng(4);
  ScoreSpec spec;
  spec.skip_first = 3, spec.skip_last = 2;
  std::vector<float> z(100);
  for (float& x : z) x = rng.normal() * 30;
  const auto got = scores(spec, z, {70}, 1, 1, false);
  double sum = 0;
  for (size_t j = 0; j < got.size(); ++j) {
    if (j < 3 || j > 70) {
      EXPECT_EQ(got[j], 0);
    }
    sum += double(got[j]);
  }
  EXPECT_NEAR(sum, 1, 1e-6);
}

TEST_P(AttnScores, QueriesWithoutCandidatesGiveNothing) {
  ScoreSpec spec;
  spec.skip_first = 4;
  const std::vector<float> z(20, 1.f);  // two queries of two heads, 5 ordinals
  EXPECT_EQ(scores(spec, z, {3, 2}, 2, 1, false), std::vector<float>(5, 0.f));
  spec.prob = false;
  EXPECT_EQ(scores(spec, z, {3, 2}, 2, 1, false), std::vector<float>(5, -kInf));
  EXPECT_EQ(scores(spec, {}, {}, 2, 1, false), std::vector<float>(5, -kInf));
  spec.prob = true;
  EXPECT_EQ(scores(spec, z, {4, 2}, 2, 1, false),
            (std::vector<float>{0, 0, 0, 0, 0.5f}));  // mean of 1 and nothing
}

INSTANTIATE_TEST_SUITE_P(Levels,
                         AttnScores,
                         ::testing::Values(cpu::Isa::kBaseline, cpu::Isa::kAvx2),
                         [](const auto& level) { return std::string(cpu::to_string(level.param)); });

}  // namespace
}  // namespace se
