// What a traced request tells of what it keeps and reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/engine_testing.h"

namespace se::testing {
namespace {

TEST(Trace, TellsWhatTheStoreCounts) {
  auto engine = tiny_engine();
  for (const std::string& plan : test_plans()) {
    Rng rng(4);
    Request r;
    for (int i = 0; i < 170; ++i) r.ids.push_back(kTinyFirstByte + int32_t(rng.below(256)));
    r.plan = plan, r.max_tokens = 30, r.ignore_eos = true;
    const Answer plain = engine->run(r);
    r.trace = r.trace_weights = true;
    std::map<int, std::vector<int32_t>> kept;
    int64_t read = 0, calls = 0;
    Callbacks c;
    c.on_kept = [&](int layer, std::span<const int32_t> positions) {
      EXPECT_TRUE(std::is_sorted(positions.begin(), positions.end())) << plan;
      EXPECT_LT(positions.back(), 170) << plan;
      kept[layer].assign(positions.begin(), positions.end());
    };
    c.on_read = [&](const ReadTrace& t, int) {
      EXPECT_GE(t.step, 1);
      EXPECT_TRUE(std::is_sorted(t.positions.begin(), t.positions.end())) << plan;
      for (int32_t p : t.positions) {  // of the prompt only what was kept
        if (p < 170) {
          EXPECT_TRUE(std::binary_search(kept[t.layer].begin(), kept[t.layer].end(), p)) << plan << " " << p;
        }
        EXPECT_LT(p, 169 + t.step) << plan;
      }
      ASSERT_EQ(t.weights.size(), t.positions.size()) << plan;
      const double sum = std::accumulate(t.weights.begin(), t.weights.end(), 0.0);
      EXPECT_GT(sum, 0) << plan;
      EXPECT_LT(sum, 1) << plan;  // the token itself has the rest
      read += int64_t(t.positions.size()), ++calls;
    };
    const Answer a = engine->run(r, c);
    EXPECT_EQ(a.ids, plain.ids) << plan << a.error.message();
    EXPECT_EQ(kept.size(), size_t(engine->info().layers)) << plan;
    EXPECT_EQ(calls, 29 * engine->info().layers) << plan;
    EXPECT_NEAR(double(read) / double(calls), a.usage.kv.read_tokens, 1e-9) << plan;
  }
}

}  // namespace
}  // namespace se::testing
