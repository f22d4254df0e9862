// The choice of blocks: the worked example of the specification, the slow twin, every level's bits.
#include "sparse/prefill/flashprefill/choose.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "device/cpu/isa.h"
#include "sparse/prefill/flashprefill/energies.h"

namespace se::flashprefill {
namespace {

// A tile's memory: queries, turned means, energies of the level in use.
struct Scene {
  std::vector<std::vector<float>> queries;
  std::vector<const float*> q;
  std::vector<float> means;  // [blocks, dim]
  Tile tile;
  Rule rule;

  void point() {
    q.clear();
    for (const auto& row : queries) q.push_back(row.data());
    tile.q = q.data(), tile.rows = int64_t(q.size());
  }
  std::vector<float> energy(Energies of) const {
    const int64_t active = tile.active(rule.block),
                  stride = (active + kMeanLanes - 1) / kMeanLanes * kMeanLanes;
    std::vector<float> turned(size_t(tile.dim * stride), 0.f), scratch(size_t(tile.rows * stride), 0.f);
    std::vector<float> out(static_cast<size_t>(active));
    std::vector<int32_t> seen;
    for (int64_t r = 0; r < tile.rows; ++r)
      seen.push_back(int32_t(std::min(active, tile.place(r) / rule.block + 1)));
    for (int64_t b = 0; b < active; ++b) {
      for (int d = 0; d < tile.dim; ++d) turned[size_t(d * stride + b)] = means[size_t(b * tile.dim + d)];
    }
    of(tile.q,
       seen.data(),
       int(tile.rows),
       turned.data(),
       stride,
       int(active),
       tile.dim,
       tile.scale,
       scratch.data(),
       out.data());
    return out;
  }
  std::pair<std::vector<int32_t>, std::vector<int32_t>> chosen() const {
    const std::vector<float> e = energy(energies());
    std::vector<int32_t> kept(size_t(tile.blocks(rule.block)), 0), means_of(kept.size());
    const Counts n = choose(rule, tile, e.data(), kept.data(), means_of.data());
    kept.resize(size_t(n.kept)), means_of.resize(size_t(n.means));
    return {kept, means_of};
  }
};

// methods-dynamic.md 6.4.
TEST(FlashPrefillChoice, WorkedExampleF1) {
  Scene s;
  s.queries = {{2, 0}, {0, 2}};
  s.point();
  const std::vector<float> keys = {2, 0, 2, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 0, 1};
  for (double m : means_ref(keys.data(), 8, 2, 2)) s.means.push_back(float(m));
  EXPECT_EQ(s.means, (std::vector<float>{2, 0, 0, 0, 1, 1, 0, 1}));
  s.tile.first = 6, s.tile.dim = 2, s.tile.scale = std::sqrt(0.5f);
  s.rule = {.threshold = 0.1, .sink = 0, .window = 0, .block = 2, .correction = true};
  const std::vector<double> want = {1.059106, .118211, .486233, .302222};
  const std::vector<double> twin = energies_ref(s.rule, s.tile, s.means.data());
  const std::vector<float> got = s.energy(energies());
  ASSERT_EQ(got.size(), 4u);
  for (size_t b = 0; b < 4; ++b) {
    EXPECT_NEAR(twin[b], want[b], 5e-7);
    EXPECT_NEAR(got[b], want[b], 1e-6);
  }
  EXPECT_EQ(s.chosen().first, (std::vector<int32_t>{0, 1, 2, 3}));
  s.rule.threshold = 0.3;
  EXPECT_EQ(s.chosen().first, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(s.chosen().second, (std::vector<int32_t>{1}));  // block 3 holds the queries
  s.rule.threshold = 0.6;
  EXPECT_EQ(s.chosen().first, (std::vector<int32_t>{0}));
  EXPECT_EQ(s.chosen().second, (std::vector<int32_t>{1, 2}));
  s.rule.correction = false;
  EXPECT_TRUE(s.chosen().second.empty());
}

// Energies are sums of up to 128 exponentials <= 1 of f32 dots: (dim + 8) roundings of a logit's terms, 2 ulp
// of an exponential, 128 of a sum.
TEST(FlashPrefillChoice, EqualsTheSlowTwinAndEveryLevelHasItsBits) {
  Rng rng(1);
  int ties = 0, kept = 0, all = 0;
  for (int64_t group : {1, 3, 7, 8}) {
    for (int64_t rows : {1, 2, 127, 128}) {
      for (int64_t first : {0, 1, 127, 128, 129, 4096, 5000}) {
        Scene s;
        const int dim = group == 3 ? 20 : 64;
        s.tile.first = first, s.tile.group = group, s.tile.dim = dim, s.tile.packed = 256;
        s.tile.scale = 1.f / std::sqrt(float(dim));
        for (int64_t r = 0; r < rows; ++r) {
          s.queries.emplace_back();
          for (int d = 0; d < dim; ++d) s.queries.back().push_back(rng.normal() * 1.5f);
        }
        s.point();
        s.rule = {.threshold = 0.3, .sink = 1, .window = 2, .block = first == 5000 ? 32 : 128};
        const int64_t active = s.tile.active(s.rule.block);
        for (int64_t i = 0; i < active * dim; ++i) s.means.push_back(rng.normal());
        const std::vector<double> want = energies_ref(s.rule, s.tile, s.means.data());
        std::vector<float> base;
        for (cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
          if (isa > cpu::best_isa()) continue;
          cpu::set_isa_for_test(isa);
          const std::vector<float> got = s.energy(energies());
          if (isa == cpu::Isa::kBaseline) base = got;
          ASSERT_EQ(got.size(), base.size());
          if (got.empty()) continue;
          ASSERT_EQ(std::memcmp(got.data(), base.data(), got.size() * 4), 0) << cpu::to_string(isa);
        }
        cpu::set_isa_for_test(cpu::best_isa());
        const double bound = (dim * 8 + 8 + double(rows)) * 6e-8;  // logits are below 8
        double top = 0;
        for (double e : want) top = std::max(top, e);
        for (int64_t b = 0; b < active; ++b)
          ASSERT_NEAR(base[size_t(b)], want[size_t(b)], bound * want[size_t(b)] + 1e-37) << b;

        const auto [blocks, means] = s.chosen();
        std::vector<uint8_t> state(size_t(s.tile.blocks(s.rule.block)), 0);
        for (int32_t b : blocks) state[size_t(b)] = 1;
        for (int32_t b : means) state[size_t(b)] = 2;
        for (int64_t b = 0; b < int64_t(state.size()); ++b) {
          const bool forced = b < s.rule.sink || b > s.tile.low() / s.rule.block - s.rule.window;
          const double e = b < active ? want[size_t(b)] : 0;
          const bool keep = forced || (b < active && e >= s.rule.threshold * top);
          ++all, kept += state[size_t(b)] == 1;
          if (!forced && std::abs(e - s.rule.threshold * top) <= 2 * bound * top) {
            ++ties;
            continue;
          }
          EXPECT_EQ(state[size_t(b)] == 1, keep) << b;
          EXPECT_EQ(state[size_t(b)] == 2, !keep && (b + 1) * s.rule.block <= s.tile.low()) << b;
        }
      }
    }
  }
  EXPECT_LE(ties, all / 100);
  EXPECT_GT(kept, all / 10);
  EXPECT_LT(kept, all * 9 / 10);
}

TEST(FlashPrefillChoice, ThresholdZeroReadsAllAndOneOnlyTheBest) {
  Rng rng(2);
  Scene s;
  for (int r = 0; r < 64; ++r) {
    s.queries.emplace_back();
    for (int d = 0; d < 16; ++d) s.queries.back().push_back(rng.normal() * 40.f);  // energies down to 0
  }
  s.point();
  s.tile.first = 3200, s.tile.dim = 16, s.tile.scale = 0.25f;
  s.rule = {.threshold = 0, .sink = 0, .window = 1, .block = 32};
  for (int i = 0; i < 102 * 16; ++i) s.means.push_back(rng.normal());
  EXPECT_EQ(int64_t(s.chosen().first.size()), s.tile.blocks(32));
  s.rule.threshold = 1;
  EXPECT_LE(s.chosen().first.size(), 4u);  // the best, and those of the queries
}

}  // namespace
}  // namespace se::flashprefill
