#include "sparse/read/quest/score.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/half.h"
#include "base/npy.h"
#include "base/rng.h"
#include "device/cpu/isa.h"
#include "kernels/topk/topk.h"
#include "sparse/read/quest/bounds.h"

namespace se::quest {
namespace {

const std::string kGoldens = "src/sparse/read/quest/goldens/";

struct Case {
  int kv_heads, group, dim;
  DType type;
  std::vector<char> lo, hi;  // [kv_heads, dim]
  std::vector<float> split;  // the query

  // Bounds of keys f32 [tokens, kv_heads, dim].
  Case(int h, int g, int d, DType t, const float* keys, int64_t tokens, const std::vector<float>& query)
      : kv_heads(h), group(g), dim(d), type(t), split(size_t(h * g * split_floats(d))) {
    lo.resize(size_t(bytes_of(type, h * d))), hi = lo;
    for (int i = 0; i < h; ++i)
      bound_keys(keys + i * d, int64_t(h) * d, tokens, d, type, at(lo, i), at(hi, i));
    split_query(query.data(), dim, h * g, dim, split.data());
  }
  char* at(std::vector<char>& v, int head) const { return v.data() + bytes_of(type, int64_t(head) * dim); }
  SplitQuery query() const { return {split.data(), kv_heads, group, dim}; }
  float score(ScoreUnits f) const {
    const int64_t stride = bytes_of(type, dim);
    const UnitBounds unit{lo.data(), hi.data()};
    float out = 0;
    f(query(), {narrow_of(type), narrow_of(type), stride, stride, 0}, &unit, 1, &out);
    return out;
  }
};

std::vector<float> random(int64_t n, uint64_t seed, float scale = 1) {
  Rng rng(seed);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = rng.normal() * scale;
  return v;
}
bool has_avx2() { return cpu::best_isa() >= cpu::Isa::kAvx2; }
bool has_avx512() { return cpu::best_isa() >= cpu::Isa::kAvx512; }

TEST(QuestScore, SpecExampleQ1) {  // methods-dynamic.md 2.4
  const float k[4][2][2][3] = {{{{1, 0, -1}, {0, 1, 1}}, {{0, 2, -1}, {1, -1, 0}}},
                               {{{3, -2, 0}, {-2, 0, 3}}, {{-1, 1, 1}, {2, 1, -1}}},
                               {{{0, 0, 4}, {1, 1, 1}}, {{2, 2, 0}, {0, -3, 2}}},
                               {{{-3, 1, 2}, {4, 0, 0}}, {{1, -1, -2}, {-1, 2, -2}}}};
  const std::vector<float> q = {1, 2, -1, -1, 0, 2, 2, -1, 0, 0, 1, -3};
  const float want[] = {6, 5, 8, 8};
  for (int j = 0; j < 4; ++j)
    EXPECT_EQ(Case(2, 2, 3, DType::kF16, k[j][0][0], 2, q).score(score_units_ref), want[j]);
}

TEST(QuestScore, BoundsAreNeverBelowAnyKeysProduct) {
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const int heads = 2, group = 3, dim = 40, tokens = 16;
      const auto keys =
          random(tokens * heads * dim, seed, seed % 2 ? 30 : 1e-6f);  // not representable in the narrow types
      const auto q = random(heads * group * dim, seed + 1000);
      Case c(heads, group, dim, type, keys.data(), tokens, q);
      const float bound = c.score(score_units_ref);
      for (int a = 0; a < heads * group; ++a) {
        for (int t = 0; t < tokens; ++t) {
          double dot = 0, size = 0;
          for (int d = 0; d < dim; ++d) {
            const double p = double(q[size_t(a * dim + d)]) * keys[size_t((t * heads + a / group) * dim + d)];
            dot += p, size += std::fabs(p);
          }
          EXPECT_LE(dot, bound + size * 1e-5) << to_string(type);
        }
      }
    }
  }
}

TEST(QuestScore, NarrowBoundsRoundOutwardsByLessThanAStep) {
  const auto keys = random(16 * 256, 7, 100);
  for (DType type : {DType::kF16, DType::kBF16}) {
    std::vector<uint16_t> lo(256), hi(256);
    bound_keys(keys.data(), 256, 16, 256, type, lo.data(), hi.data());
    for (size_t d = 0; d < 256; ++d) {
      float least = keys[d], most = keys[d];
      for (size_t t = 1; t < 16; ++t)
        least = std::min(least, keys[t * 256 + d]), most = std::max(most, keys[t * 256 + d]);
      const auto wide = [&](uint16_t h) { return type == DType::kF16 ? f16_to_f32(h) : bf16_to_f32(h); };
      const float step = std::fabs(most) * (type == DType::kF16 ? 0x1p-10f : 0x1p-7f) + 1e-7f;
      EXPECT_LE(wide(lo[d]), least);
      EXPECT_GE(wide(hi[d]), most);
      EXPECT_LT(wide(hi[d]) - most, step);
    }
  }
  // Around zero and at the ends the neighbour changes sign or exponent.
  for (float x : {0.f, -0.f, 1e-10f, -1e-10f, 0x1p-14f, 1.0005f, -1.0005f, 2047.5f}) {
    uint16_t lo = 0, hi = 0;
    bound_keys(&x, 1, 1, 1, DType::kF16, &lo, &hi);
    EXPECT_LE(f16_to_f32(lo), x);
    EXPECT_GE(f16_to_f32(hi), x);
  }
}

TEST(QuestScore, Avx2EqualsTheReferenceUpToRounding) {
  if (!has_avx2()) GTEST_SKIP() << "no AVX2";
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int group : {1, 2, 3, 4, 5, 7, 8, 9}) {
      for (int dim : {8, 64, 128, 136}) {
        const auto keys = random(16 * 3 * dim, uint64_t(dim + group));
        const auto q = random(3 * group * dim, uint64_t(dim));
        Case c(3, group, dim, type, keys.data(), 16, q);
        const float want = c.score(score_units_ref);
        EXPECT_NEAR(c.score(score_units_avx2), want, 1e-5 * dim);
      }
    }
  }
}

// Several units at a time, odd counts, every group, a unit of NaN among them.
TEST(QuestScore, Avx512GivesTheBitsOfAvx2) {
  if (!has_avx512()) GTEST_SKIP() << "no AVX-512";
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int group = 1; group <= 17; ++group) {
      for (int dim : {8, 64, 136}) {
        const int heads = 2, n = group % 2 == 0 ? 9 : 6;
        const int64_t stride = bytes_of(type, dim);
        const auto q = random(heads * group * dim, uint64_t(group));
        std::vector<Case> cases;
        for (int u = 0; u < n; ++u) {
          auto keys = random(16 * heads * dim, uint64_t(dim + group + 100 * u));
          if (u == 4) keys[size_t(dim)] = NAN;  // of the second head
          cases.emplace_back(heads, group, dim, type, keys.data(), 16, q);
        }
        std::vector<UnitBounds> units;
        for (const Case& c : cases) units.push_back({c.lo.data(), c.hi.data()});
        for (float levels : {0.f, 15.f}) {
          const Narrow second = levels > 0 ? Narrow::kF16 : narrow_of(type);
          const BoundsFormat f{narrow_of(type), second, stride, levels > 0 ? 2 * dim : stride, levels};
          std::vector<float> want(size_t(n), 0.f), got(size_t(n), 1.f);
          score_units_avx2(cases[0].query(), f, units.data(), n, want.data());
          score_units_avx512(cases[0].query(), f, units.data(), n, got.data());
          for (size_t u = 0; u < size_t(n); ++u)
            EXPECT_TRUE(got[u] == want[u] || (std::isnan(got[u]) && std::isnan(want[u])))
                << to_string(type) << " " << group << " " << dim << " " << levels << " " << u;
          EXPECT_TRUE(levels > 0 || std::isnan(got[4]));
        }
      }
    }
  }
}

// Units that one level picks and another does not score alike up to the rounding of their sums: a sum of dim
// terms is off by dim 2^-24 of their size at most, at either level.
TEST(QuestScore, LevelsPickTheSameUnitsButForNearTies) {
  const int heads = 2, group = 7, dim = 64, n = 1875, k = 64;
  int64_t other = 0, picks = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const auto q = random(heads * group * dim, seed);
    std::vector<Case> cases;
    for (int u = 0; u < n; ++u)
      cases.emplace_back(heads,
                         group,
                         dim,
                         DType::kF16,
                         random(16 * heads * dim, 1000 * seed + 7 + uint64_t(u)).data(),
                         16,
                         q);
    std::vector<UnitBounds> units;
    for (const Case& c : cases) units.push_back({c.lo.data(), c.hi.data()});
    double size = 0;  // of a sum's terms: no bound is beyond 8
    for (int a = 0; a < heads * group; ++a) {
      double sum = 0;
      for (int d = 0; d < dim; ++d) sum += std::fabs(q[size_t(a * dim + d)]) * 8;
      size = std::max(size, sum);
    }
    const int64_t row = 2 * dim;
    const auto score = [&](ScoreUnits f) {
      std::vector<float> out(static_cast<size_t>(n));
      f(cases[0].query(), {Narrow::kF16, Narrow::kF16, row, row, 0}, units.data(), n, out.data());
      return out;
    };
    const std::vector<float> want = score(score_units_ref);
    std::vector<int32_t> best, got;
    top_k(want, k, best);
    for (ScoreUnits f : {has_avx2() ? score_units_avx2 : score_units_ref,
                         has_avx512() ? score_units_avx512 : score_units_ref}) {
      top_k(score(f), k, got);
      std::vector<int32_t> in, out;
      std::set_difference(got.begin(), got.end(), best.begin(), best.end(), std::back_inserter(in));
      std::set_difference(best.begin(), best.end(), got.begin(), got.end(), std::back_inserter(out));
      for (size_t i = 0; i < in.size(); ++i)
        EXPECT_LE(want[size_t(out[i])] - want[size_t(in[i])], 2 * dim * 0x1p-24 * size);
      other += int64_t(in.size()), picks += k;
    }
  }
  RecordProperty("other picks", int(other));
  EXPECT_LE(other, picks / 100);
}

TEST(QuestScore, StepsOfACodecScoreAsTheirBounds) {
  const int heads = 2, group = 3, dim = 64;
  const auto base = random(heads * dim, 1), q = random(heads * group * dim, 2);
  std::vector<uint16_t> lo, step;
  std::vector<float> low, high;
  for (float x : base) {
    lo.push_back(f32_to_f16(x)), step.push_back(f32_to_f16(std::fabs(x) / 7));
    low.push_back(f16_to_f32(lo.back())), high.push_back(low.back() + 15.f * f16_to_f32(step.back()));
  }
  std::vector<float> both(low);
  both.insert(both.end(), high.begin(), high.end());
  Case exact(heads, group, dim, DType::kF32, both.data(), 2, q);
  const BoundsFormat f{Narrow::kF16, Narrow::kF16, 2 * dim, 2 * dim, 15};
  const UnitBounds b{reinterpret_cast<char*>(lo.data()), reinterpret_cast<char*>(step.data())};
  const auto agree = [&](ScoreUnits score) {
    float got = 0;
    score(exact.query(), f, &b, 1, &got);
    EXPECT_EQ(got, exact.score(score));
  };
  agree(score_units_ref);
  if (has_avx2()) agree(score_units_avx2);
  if (has_avx512()) agree(score_units_avx512);
}

TEST(QuestScore, BoundsAndScoresEqualTheOracle) {
  const auto keys = Npy::load(kGoldens + "wide_keys.npy").as<float>(),
             queries = Npy::load(kGoldens + "wide_queries.npy").as<float>();
  const auto scores = Npy::load(kGoldens + "wide_scores.npy").as<float>();
  for (int i = 0; i < 4; ++i) {
    const std::vector<float> q(queries.begin() + i * 9 * 64, queries.begin() + (i + 1) * 9 * 64);
    for (int u = 0; u < 7; ++u) {
      Case c(3, 3, 64, DType::kF16, &keys[size_t(u * 16 * 3 * 64)], 16, q);
      EXPECT_NEAR(c.score(score_units(64)), scores[size_t(i * 7 + u)], 1e-3);
      EXPECT_NEAR(c.score(score_units_ref), scores[size_t(i * 7 + u)], 1e-3);
    }
  }
  for (int unit : {16, 32}) {
    const auto suffix = std::to_string(unit) + ".npy";
    const auto all = Npy::load(kGoldens + "keys.npy").as<float>(),
               lo = Npy::load(kGoldens + "lo_" + suffix).as<float>(),
               hi = Npy::load(kGoldens + "hi_" + suffix).as<float>();
    for (size_t u = 0; u < lo.size() / 32; ++u) {
      Case c(2, 2, 16, DType::kF32, &all[u * size_t(unit) * 32], unit, std::vector<float>(64));
      for (size_t i = 0; i < 32; ++i) {
        EXPECT_EQ(reinterpret_cast<float*>(c.lo.data())[i], lo[u * 32 + i]);
        EXPECT_EQ(reinterpret_cast<float*>(c.hi.data())[i], hi[u * 32 + i]);
      }
    }
  }
}

}  // namespace
}  // namespace se::quest
