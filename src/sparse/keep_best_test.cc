#include "sparse/keep_best.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/npy.h"
#include "base/rng.h"

namespace se {
namespace {

struct Case {
  std::vector<int32_t> in;  // ordinals to choose from
  int64_t encoded = 0, tail = 0;
  int grain = 1;
  std::vector<float> score;
  int64_t sink = 0, recent = 0, budget = 0;
  int pool = 1;
};

std::vector<int32_t> run(const Case& c) {
  std::vector<int32_t> in = c.in, out(in.size() + 1, -7);
  int32_t n = int32_t(in.size()), kept = -1;
  KeepInput input;
  input.in = {TensorView::of(in.data(), DType::kI32, {1, n}), TensorView::of(&n, DType::kI32, {1})};
  input.encoded = c.encoded, input.tail = c.tail, input.grain = c.grain;
  KeepList list{TensorView::of(out.data(), DType::kI32, {1, n}), TensorView::of(&kept, DType::kI32, {1})};
  keep_best(input, c.score, c.sink, c.recent, c.budget, c.pool, list);
  EXPECT_EQ(out.back(), -7) << "wrote beyond its room";
  out.resize(size_t(kept));
  return out;
}

// The same, group by group: the best of those left enters while there is room for a part of it.
std::vector<int32_t> brute(const Case& c) {
  const int64_t n = int64_t(c.in.size());
  if (n <= c.budget) return c.in;
  const auto group = [&](int64_t i) {
    const int64_t o = c.in[size_t(i)];
    return o < c.encoded ? o / c.grain : c.encoded + o;
  };
  const int64_t lo = std::min(c.sink, n), hi = std::max(lo, n - c.recent);
  std::vector<bool> kept(static_cast<size_t>(n), false);
  const auto keep_group = [&](int64_t g) {
    for (int64_t i = 0; i < n; ++i) {
      if (group(i) == g) kept[size_t(i)] = true;
    }
  };
  for (int64_t i = 0; i < n; ++i) {
    const int64_t o = c.in[size_t(i)];
    if (i < lo || i >= hi || (o >= c.encoded && o < c.encoded + c.tail)) keep_group(group(i));
  }
  while (!c.score.empty() && std::count(kept.begin(), kept.end(), true) < c.budget) {
    int64_t best = -1;
    float best_mean = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (kept[size_t(i)] || (i > 0 && group(i) == group(i - 1))) continue;
      float sum = 0, tokens = 0;
      for (int64_t j = i; j < n && group(j) == group(i); ++j, ++tokens) {
        float most = -std::numeric_limits<float>::infinity();
        for (int64_t p = std::max(lo, j - c.pool / 2); p < std::min(hi, j + c.pool / 2 + 1); ++p) {
          most = std::max(most, c.score[size_t(c.in[size_t(p)])]);
        }
        sum += most;
      }
      if (best < 0 || sum / tokens > best_mean) best = i, best_mean = sum / tokens;
    }
    if (best < 0) break;
    keep_group(group(best));
  }
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n; ++i) {
    if (kept[size_t(i)]) out.push_back(c.in[size_t(i)]);
  }
  return out;
}

std::vector<int32_t> iota(int n) {
  std::vector<int32_t> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), 0);
  return v;
}

TEST(KeepBest, KeepsSinkBestAndRecent) {
  Case c;
  c.in = iota(8);
  c.score = {9, 0, 3, 1, 3, 2, 9, 9};
  c.sink = 1, c.recent = 2, c.budget = 5;
  EXPECT_EQ(run(c), (std::vector<int32_t>{0, 2, 4, 6, 7}));
  c.budget = 4;
  EXPECT_EQ(run(c), (std::vector<int32_t>{0, 2, 6, 7})) << "ties go to the lower ordinal";
  c.budget = 8;
  EXPECT_EQ(run(c), iota(8));
  c.score.clear(), c.budget = 5;
  EXPECT_EQ(run(c), (std::vector<int32_t>{0, 6, 7})) << "without scores the middle goes";
}

TEST(KeepBest, PoolsTheMiddleAlone) {
  Case c;
  c.in = iota(8);
  c.score = {9, 1, 1, 1, 5, 1, 9, 9};  // the ends' scores must not leak into the middle
  c.sink = 1, c.recent = 2, c.budget = 5, c.pool = 3;
  EXPECT_EQ(run(c), (std::vector<int32_t>{0, 3, 4, 6, 7}));
}

TEST(KeepBest, MovesEncodedTokensInGroups) {
  Case c;
  c.in = iota(14);  // three groups of 4, two tokens in the ring
  c.encoded = 12, c.tail = 2, c.grain = 4;
  c.score.assign(14, 0);
  c.score[9] = 1;
  c.sink = 1, c.recent = 1, c.budget = 7;
  EXPECT_EQ(run(c), (std::vector<int32_t>{0, 1, 2, 3, 8, 9, 10, 11, 12, 13}))
      << "one group exceeds the budget by 3";
  c.budget = 6;
  EXPECT_EQ(run(c), (std::vector<int32_t>{0, 1, 2, 3, 12, 13})) << "the sink's group and the tail fill it";
}

TEST(KeepBest, AgreesWithBruteForce) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    const auto draw = [&](int64_t below) { return rng.below(std::max<int64_t>(below, 1)); };
    Case c;
    c.grain = 1 << draw(4);
    c.encoded = draw(12) * c.grain;
    c.tail = draw(9);
    const int64_t n = c.encoded + c.tail + draw(40) + 1;
    const bool thin = draw(3) == 0;  // an earlier keeper narrowed the row: whole groups, single exact tokens
    for (int64_t o = 0; o < n; ++o) {
      const bool tail = o >= c.encoded && o < c.encoded + c.tail;
      if (thin && !tail && (o < c.encoded ? o / c.grain : o) % 3 == 1) continue;
      c.in.push_back(int32_t(o));
    }
    if (draw(8) > 0) {
      for (int64_t o = 0; o < n; ++o)
        c.score.push_back(float(draw(6)) * 0.25f - 0.5f);  // many ties, exact sums
    }
    c.sink = draw(6), c.recent = draw(12);
    c.budget = c.sink + c.recent + draw(n);
    c.pool = int(draw(3)) * 2 + 1;
    ASSERT_EQ(run(c), brute(c)) << "seed " << seed;
  }
}

TEST(KeepBest, AgreesWithTheOracle) {
  const std::string dir = "src/sparse/keep/snapkv/goldens/";
  const Npy cases = Npy::load(dir + "group_cases.npy");
  const std::vector<int32_t> table = cases.as<int32_t>();
  const std::vector<float> scores = Npy::load(dir + "group_scores.npy").as<float>();
  const std::vector<int32_t> in = Npy::load(dir + "group_in.npy").as<int32_t>();
  const std::vector<int32_t> keep = Npy::load(dir + "group_keep.npy").as<int32_t>();
  const auto part = [](const auto& all, int64_t start, int64_t count) {
    return std::remove_cvref_t<decltype(all)>(all.begin() + start, all.begin() + start + count);
  };
  ASSERT_GT(cases.shape[0], 50);
  for (int64_t i = 0; i < cases.shape[0]; ++i) {
    const int32_t* p = table.data() + i * cases.shape[1];
    Case c;
    c.encoded = p[1], c.tail = p[2], c.grain = p[3], c.sink = p[4], c.recent = p[5], c.budget = p[6],
    c.pool = p[7];
    c.score = part(scores, p[8], p[0]);
    c.in = part(in, p[9], p[10]);
    EXPECT_EQ(run(c), part(keep, p[11], p[12])) << "case " << i;
  }
}

}  // namespace
}  // namespace se
