#include "kernels/topk/topk.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "kernels/topk/topk_ref.h"

namespace se {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(TopK, EqualsTheStableSortWithManyTies) {
  Rng rng(1);
  for (int n : {1, 2, 3, 17, 300, 5000}) {
    for (int levels : {1, 2, 7, 1 << 20}) {
      std::vector<float> score(static_cast<size_t>(n));
      for (float& s : score) s = levels < 100 ? float(rng.below(levels)) - 1 : rng.normal();
      for (int64_t k : {0, 1, 2, n / 3, n - 1, n}) {
        std::vector<int32_t> got{9}, want;
        top_k(score, k, got);
        ref::top_k(score, k, want);
        EXPECT_EQ(got, want) << n << " " << levels << " " << k;
      }
    }
  }
}

TEST(TopK, RanksZerosAlikeInfinitiesAtTheEndsAndNanLast) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> score{-0.f, 0.f, nan, -kInf, kInf, -1e-45f, -nan, 1e-45f};
  const std::vector<std::vector<int32_t>> best{
      {4}, {4, 7}, {0, 4, 7}, {0, 1, 4, 7}, {0, 1, 4, 5, 7}, {0, 1, 3, 4, 5, 7}, {0, 1, 2, 3, 4, 5, 7}};
  for (size_t k = 1; k <= best.size(); ++k) {
    std::vector<int32_t> got;
    top_k(score, int64_t(k), got);
    EXPECT_EQ(got, best[k - 1]) << k;
  }
}

TEST(TopK, TakesAllOrNoneAtTheEnds) {
  std::vector<int32_t> got{1, 2};
  top_k(std::vector<float>{3, 1, 2}, 7, got);
  EXPECT_EQ(got, (std::vector<int32_t>{0, 1, 2}));
  top_k(std::vector<float>{3, 1, 2}, -1, got);
  EXPECT_TRUE(got.empty());
  top_k({}, 4, got);
  EXPECT_TRUE(got.empty());
}

TEST(MaxPool, EqualsLookingAtEachWindow) {
  Rng rng(2);
  for (int n : {0, 1, 2, 5, 6, 100}) {
    std::vector<float> score(static_cast<size_t>(n)), got(score), want(score);
    for (float& s : score) s = rng.normal();
    for (int width : {1, 3, 7, 11}) {
      max_pool(score, width, got);
      ref::max_pool(score, width, want);
      EXPECT_EQ(got, want) << n << " " << width;
    }
  }
}

}  // namespace
}  // namespace se
