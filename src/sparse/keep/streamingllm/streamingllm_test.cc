#include "sparse/keep/streamingllm/streamingllm.h"

#include <gtest/gtest.h>

#include "base/npy.h"
#include "sparse/testing/pick_once.h"
#include "sparse/testing/set_fields.h"

namespace se {
namespace {

const std::string kGoldens = "src/sparse/keep/streamingllm/goldens/";

std::unique_ptr<Keeper> make(const std::map<std::string, double>& fields) {
  return make_stage<Keeper>(stage_keep_streamingllm, fields);
}
SeqView facts(const std::vector<int64_t>& resident, bool last_chunk) {
  SeqView q;
  q.resident = resident, q.last_chunk = last_chunk, q.decode = !last_chunk;
  return q;
}

TEST(StreamingLlm, SpecExamples) {  // methods-eviction.md 8, SLM-sel
  const auto keeper = make({{"budget", 5}, {"sink", 2}});
  EXPECT_EQ(PickOnce::row(10)(*keeper, {}), (std::vector<int>{0, 1, 7, 8, 9}));
  EXPECT_EQ(PickOnce::row(6)(*keeper, {}), (std::vector<int>{0, 1, 3, 4, 5}));
  EXPECT_EQ(PickOnce::row(5)(*keeper, {}), (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(PickOnce::row(4)(*keeper, {}), (std::vector<int>{0, 1, 2, 3}));
}

TEST(StreamingLlm, PicksEqualTheOracle) {
  const Npy table = Npy::load(kGoldens + "cases.npy");
  const auto cases = table.as<int>(), keep = Npy::load(kGoldens + "keep.npy").as<int>();
  for (int64_t i = 0; i < table.shape[0]; ++i) {
    const int* c = &cases[size_t(i * 8)];
    PickOnce pick = PickOnce::row(c[0]);
    pick.encoded = c[1], pick.tail = c[2], pick.grain = c[3];
    EXPECT_EQ(pick(*make({{"sink", c[4]}, {"budget", c[5]}}), {}),
              std::vector<int>(keep.begin() + c[6], keep.begin() + c[6] + c[7]))
        << "case " << i;
  }
}

TEST(StreamingLlm, LivesAsTheOracleTraces) {  // SLM-decode among them: due, resident, pick, peak
  const Npy table = Npy::load(kGoldens + "trace_cases.npy"),
            lengths = Npy::load(kGoldens + "trace_tokens.npy");
  const auto cases = table.as<int>(), tokens = lengths.as<int>(),
             keep = Npy::load(kGoldens + "trace_keep.npy").as<int>();
  const int64_t steps = lengths.shape[1];
  for (int64_t i = 0; i < table.shape[0]; ++i) {
    const int* c = &cases[size_t(i * 6)];
    const auto keeper = make({{"sink", c[1]}, {"budget", c[2]}, {"factor", c[3] / 4.0}});
    std::vector<int> row(static_cast<size_t>(c[0]));
    std::iota(row.begin(), row.end(), 0);
    int64_t longest = 0;
    for (int64_t step = 0; step < steps; ++step) {
      if (step > 0) row.push_back(int(c[0] + step - 1)), longest = std::max(longest, int64_t(row.size()));
      const std::vector<int64_t> resident = {int64_t(row.size())};
      const SeqView q = facts(resident, step == 0);
      const int64_t expected = keeper->resident(0, q);
      if (keeper->due(0, q)) {
        std::vector<int> left;
        for (int o : PickOnce::row(int64_t(row.size()))(*keeper, q)) left.push_back(row[size_t(o)]);
        row = left;
      }
      EXPECT_EQ(int64_t(row.size()), expected);
      EXPECT_EQ(int64_t(row.size()), tokens[size_t(i * steps + step)]) << "case " << i << " step " << step;
      longest = std::max(longest, int64_t(row.size()));
    }
    EXPECT_EQ(row, std::vector<int>(keep.begin() + c[4], keep.begin() + c[4] + c[5]));
    SeqView whole;
    whole.prompt = c[0], whole.max_new = steps - 1, whole.staged = true;
    EXPECT_EQ(keeper->peak(0, whole), longest);
    whole.staged = false;
    EXPECT_EQ(keeper->peak(0, whole), std::max<int64_t>(longest, c[0]));
  }
}

TEST(StreamingLlm, RefusesASinkThatFillsTheBudget) {
  EXPECT_TRUE(make({{"budget", 65}})->validate().ok());
  EXPECT_NE(make({{"budget", 64}})->validate().message().find("at most 63"), std::string::npos);
  SeqView q;
  q.prompt = 100;
  EXPECT_EQ(make({{"budget%", 10}})->params(q)[0],
            65);  // a share of a short prompt still holds the newest token
}

}  // namespace
}  // namespace se
