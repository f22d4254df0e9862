#include "sparse/keep/snapkv/snapkv.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/npy.h"
#include "kernels/attn_scores/attn_scores.h"
#include "sparse/testing/pick_once.h"
#include "sparse/testing/set_fields.h"

namespace se {
namespace {

const std::string kGoldens = "src/sparse/keep/snapkv/goldens/";
using Fields = std::map<std::string, double>;

std::unique_ptr<Keeper> make(const Fields& fields) { return make_stage<Keeper>(stage_keep_snapkv, fields); }

// Scores of weights [heads][queries][ordinals] (logit = ln weight, scale 1) as the keeper's spec number
// `which` wants them.
std::vector<float> vote(const Keeper& keeper,
                        size_t which,
                        std::vector<std::vector<std::vector<double>>> weights,
                        std::vector<int64_t> last) {
  const int64_t heads = int64_t(weights.size()), queries = int64_t(last.size()),
                n = int64_t(weights[0][0].size());
  std::vector<float> logits, out(static_cast<size_t>(n));
  for (int64_t q = 0; q < queries; ++q) {
    for (int64_t h = 0; h < heads; ++h) {
      for (double w : weights[size_t(h)][size_t(q)]) logits.push_back(float(std::log(w)));
    }
  }
  ThreadPool pool(2);
  Stream stream(pool);
  const KeeperSpec spec = keeper.spec(tiny_model(1, 1, 8), {});
  attn_scores(spec.scores[which],
              TensorView::of(logits.data(), DType::kF32, {queries, heads, n}),
              last,
              1,
              1,
              TensorView::of(out.data(), DType::kF32, {1, n}),
              stream);
  return out;
}

const std::vector<std::vector<std::vector<double>>> kSnapData = {
    {{6, 3, 2, 1, 8, 3, 9, 2}, {3, 5, 3, 6, 1, 1, 9, 5}},
    {{5, 2, 6, 6, 2, 4, 5, 3}, {1, 4, 7, 6, 8, 9, 5, 8}}};

TEST(SnapKv, SpecExamples) {  // methods-eviction.md 8, SNAP-*
  const Fields base = {{"budget", 4}, {"sink", 1}, {"recent", 2}, {"window", 2}};
  const auto kept = [&](Fields more) {
    for (const auto& f : base) more.insert(f);
    const auto keeper = make(more);
    PickOnce pick = PickOnce::row(8);
    pick.scores = {vote(*keeper, 0, kSnapData, {6, 7})};
    return pick(*keeper, {});
  };
  EXPECT_EQ(kept({}), (std::vector<int>{0, 4, 6, 7}));
  EXPECT_EQ(kept({{"score", 1}}), (std::vector<int>{0, 5, 6, 7}));
  EXPECT_EQ(kept({{"pool", 3}}), (std::vector<int>{0, 3, 6, 7}));
  const auto scores = vote(*make(base), 0, kSnapData, {6, 7});
  const float want[] = {0.244485f, 0.252941f, 0.238235f, 0.266544f, 0.232353f};
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(scores[size_t(i) + 1], want[i], 1e-6);

  const auto with = [](int64_t tokens, std::vector<float> score, const Fields& f) {
    PickOnce pick = PickOnce::row(tokens);
    pick.scores = {std::move(score)};
    return pick(*make(f), {});
  };
  EXPECT_EQ(with(8, std::vector<float>(8, 1.f), {{"budget", 5}, {"sink", 1}, {"recent", 2}}),
            (std::vector<int>{0, 1, 2, 6, 7}));
  EXPECT_EQ(with(8, {9, 1, 1, 1, 2, 1, 1, 8}, {{"budget", 5}, {"sink", 1}, {"recent", 2}, {"pool", 3}}),
            (std::vector<int>{0, 3, 4, 6, 7}));
  EXPECT_EQ(with(4, std::vector<float>(4, 1.f), base), (std::vector<int>{0, 1, 2, 3}));
}

TEST(SnapKv, DecodeVotesComeFromTheRingAndAreNotPooled) {  // SNAP-decode: tokens 8, 9 vote on row 0 4 6 7 8 9
  const auto keeper =
      make({{"budget", 4}, {"sink", 1}, {"recent", 2}, {"window", 2}, {"pool", 3}, {"every", 2}});
  const std::vector<int> row = {0, 4, 6, 7, 8, 9};
  std::vector<std::vector<std::vector<double>>> weights(1);
  for (int q : {8, 9}) {
    weights[0].emplace_back();
    for (int j : row) weights[0].back().push_back(1 + (3 * q + 5 * j) % 7);
  }
  PickOnce pick = PickOnce::row(6);
  pick.scores = {{}, vote(*keeper, 1, weights, {4, 5})};
  std::vector<int> positions;
  for (int o : pick(*keeper, {})) positions.push_back(row[size_t(o)]);
  EXPECT_EQ(positions, (std::vector<int>{0, 7, 8, 9}));
}

TEST(SnapKv, PicksEqualTheOracle) {
  const Npy table = Npy::load(kGoldens + "cases.npy");
  const auto cases = table.as<int>(), keep = Npy::load(kGoldens + "keep.npy").as<int>();
  const auto scores = Npy::load(kGoldens + "scores.npy").as<float>();
  for (int64_t i = 0; i < table.shape[0]; ++i) {
    const int* c = &cases[size_t(i * 10)];
    const auto keeper = make({{"budget", c[4]},
                              {"sink", c[2]},
                              {"recent", c[3]},
                              {"window", c[1]},
                              {"pool", c[5]},
                              {"score", c[6] ? 0 : 1}});
    PickOnce pick = PickOnce::row(c[0]);
    pick.scores = {std::vector<float>(scores.begin() + c[7], scores.begin() + c[7] + c[0])};
    EXPECT_EQ(pick(*keeper, {}), std::vector<int>(keep.begin() + c[8], keep.begin() + c[8] + c[9]))
        << "case " << i;
  }
}

TEST(SnapKv, GroupsOfACodecStayOrGoAsTheOracleSays) {
  const Npy table = Npy::load(kGoldens + "group_cases.npy");
  const auto cases = table.as<int>(), in = Npy::load(kGoldens + "group_in.npy").as<int>(),
             keep = Npy::load(kGoldens + "group_keep.npy").as<int>();
  const auto scores = Npy::load(kGoldens + "group_scores.npy").as<float>();
  for (int64_t i = 0; i < table.shape[0]; ++i) {
    const int* c = &cases[size_t(i * 13)];
    const auto keeper = make({{"sink", c[4]}, {"recent", c[5]}, {"budget", c[6]}, {"pool", c[7]}});
    PickOnce pick;
    pick.in.assign(in.begin() + c[9], in.begin() + c[9] + c[10]);
    pick.encoded = c[1], pick.tail = c[2], pick.grain = c[3];
    pick.scores = {std::vector<float>(scores.begin() + c[8], scores.begin() + c[8] + c[0])};
    EXPECT_EQ(pick(*keeper, {}), std::vector<int>(keep.begin() + c[11], keep.begin() + c[11] + c[12]))
        << "case " << i;
  }
}

SeqView facts(const std::vector<int64_t>& resident,
              int64_t prompt,
              int64_t max_new,
              bool last_chunk,
              bool staged = false) {
  SeqView q;
  q.prompt = prompt, q.max_new = max_new, q.resident = resident;
  q.last_chunk = last_chunk, q.decode = !last_chunk, q.staged = staged;
  return q;
}

TEST(SnapKv, DueAtThePromptsEndAndThenEverySoManySteps) {
  const auto once = make({{"budget", 1000}}), often = make({{"budget", 1000}, {"every", 100}});
  for (int64_t held : {1000, 1001, 1099, 1100, 1101}) {
    const std::vector<int64_t> resident = {held};
    EXPECT_EQ(once->due(0, facts(resident, held, 10, true)), held > 1000);
    EXPECT_FALSE(once->due(0, facts(resident, held, 10, false)));
    EXPECT_EQ(often->due(0, facts(resident, held, 10, false)), held >= 1100);
    EXPECT_EQ(often->resident(0, facts(resident, held, 10, false)), held >= 1100 ? 1000 : held);
  }
}

TEST(SnapKv, PeakIsTheLongestRowOfALife) {
  for (int64_t every : {0, 64, 100}) {
    for (int64_t prompt : {10, 999, 1000, 1001, 5000}) {
      for (int64_t max_new : {0, 1, 63, 64, 500}) {
        const auto keeper = make({{"budget", 1000}, {"every", double(every)}});
        std::vector<int64_t> row = {prompt};
        row[0] = keeper->resident(0, facts(row, prompt, max_new, true));
        int64_t longest = row[0];
        for (int64_t i = 0; i < max_new; ++i) {
          ++row[0];
          longest = std::max(longest, row[0]);
          row[0] = keeper->resident(0, facts(row, prompt, max_new, false));
        }
        EXPECT_EQ(keeper->peak(0, facts(row, prompt, max_new, true, true)), longest)
            << every << " " << prompt << " " << max_new;
        EXPECT_EQ(keeper->peak(0, facts(row, prompt, max_new, true, false)), std::max(longest, prompt));
      }
    }
  }
}

TEST(SnapKv, ShareOfThePromptHoldsSinkAndRecentTokens) {
  const auto keeper = make({{"budget%", 25}});
  const std::vector<int64_t> row = {8000};
  EXPECT_EQ(keeper->params(facts(row, 8000, 0, true))[0], 2000);
  EXPECT_EQ(keeper->params(facts(row, 100, 0, true))[0], 576);
}

TEST(SnapKv, RefusesABudgetThatCannotHoldWhatAlwaysStays) {
  EXPECT_TRUE(make({{"budget", 564}, {"recent", 500}})->validate().ok());
  const Status refused = make({{"budget", 563}, {"recent", 500}})->validate();
  EXPECT_NE(refused.message().find("at least 564"), std::string::npos) << refused.message();
}

TEST(SnapKv, TheDefaultOfRecentLeavesHalfOfASmallBudgetToVotes) {  // docs/adr/0008-small-budgets.md
  const auto recent = [](const Fields& fields) {
    return make(fields)->spec(tiny_model(1, 1, 8), {}).scores[0].skip_last;
  };
  EXPECT_EQ(recent({}), 512);
  EXPECT_EQ(recent({{"budget", 512}}), 192);
  EXPECT_EQ(recent({{"budget", 100}}), 0);
  EXPECT_EQ(recent({{"budget", 512}, {"recent", 400}}), 400);  // what is written stands
}

TEST(SnapKv, WithoutVotesNobodyGoes) {
  PickOnce pick = PickOnce::row(100);
  pick.scores = {{}};
  EXPECT_EQ(pick(*make({{"budget", 10}, {"sink", 1}, {"recent", 1}}), {}).size(), 100u);
}

}  // namespace
}  // namespace se
