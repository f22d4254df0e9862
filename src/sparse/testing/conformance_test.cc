// Every stage and every legal sum of stages, checked alike.
#include "sparse/testing/conformance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "sparse/testing/toy_model.h"

namespace se::testing {
namespace {

constexpr int64_t kPrompt = 150, kSteps = 75;

const ToyModel& model() {
  static const ToyModel m;
  return m;
}

using States = std::vector<std::vector<float>>;

// The hidden states of a prompt's end and of every decode step after it.
States play(Player& player,
            PlanSequence& seq,
            int64_t chunk,
            int64_t prompt = kPrompt,
            int64_t steps = kSteps,
            uint64_t seed = 3) {
  States out;
  out.push_back(player.prefill(seq, random_ids(seed, prompt), chunk, steps + 1));
  for (int32_t id : random_ids(seed + 100, steps)) out.push_back(player.decode(seq, id));
  return out;
}

double distance(const States& a, const States& b) {  // largest difference over largest value
  double most = 0, scale = 1e-9;
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) {
      most = std::max(most, double(std::fabs(a[i][j] - b[i][j])));
      scale = std::max(scale, double(std::fabs(b[i][j])));
      if (!std::isfinite(a[i][j])) return INFINITY;
    }
  }
  return most / scale;
}

class Conformance : public ::testing::TestWithParam<Composition> {};

INSTANTIATE_TEST_SUITE_P(Plans,
                         Conformance,
                         ::testing::ValuesIn(compositions(model().kv())),
                         [](const auto& param) {
                           std::string name = param.param.text;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return std::to_string(param.index) + "_" + name;
                         });

// (1) A budget over the row's length changes nothing, with the selecting path forced.
TEST_P(Conformance, UnlimitedBudgetEqualsPassingAll) {
  const Composition& c = GetParam();
  Player player(model());
  const auto base = player.open(c.baseline);
  const States want = play(player, *base, 64);
  player.driver().force_select_for_test(true);
  const auto seq = player.open(c.unlimited);
  const States got = play(player, *seq, 64);
  const bool one_part = seq->plan().store_spec.tail == 0;
  EXPECT_LE(distance(got, want), one_part ? 0.0 : 1e-5);
}

TEST_P(Conformance, ExactStoresEqualDense) {
  const Composition& c = GetParam();
  Player player(model());
  const auto seq = player.open(c.unlimited);
  const CodecSpec& store = seq->plan().store_spec;
  const auto dense = player.open("dense");
  const bool exact = store.tail == 0 && !store.present_as_stored;
  const double d = distance(play(player, *seq, 64), play(player, *dense, 64));
  EXPECT_LE(d, exact ? 0.0 : 0.5) << "a lossy store strays far from dense";
}

// (3) The cut of the prompt does not show where the plan says so.
TEST_P(Conformance, ChunksDoNotShow) {
  Player player(model());
  const auto one = player.open(GetParam().text);
  const States want = play(player, *one, kPrompt);
  for (int64_t chunk : {1, 7, 64}) {
    const auto seq = player.open(GetParam().text);
    EXPECT_EQ(distance(play(player, *seq, chunk, kPrompt, 20), {want.begin(), want.begin() + 21}), 0)
        << "chunks of " << chunk;
  }
}

// (5) A fork and its sibling go on as if alone. (Chain) A second turn after decode steps is legal in both.
TEST_P(Conformance, ForksDoNotTouchTheirSiblings) {
  Player player(model());
  const auto alone = player.open(GetParam().text);
  play(player, *alone, 64);
  const States want = play(player, *alone, 64, 40, 40, 9);
  const auto a = player.open(GetParam().text);
  play(player, *a, 64);
  auto fork = player.driver().fork(*a);
  ASSERT_TRUE(fork.ok());
  const auto b = fork.take();
  States other;
  for (int32_t id : random_ids(77, 50)) other.push_back(player.decode(*b, id));
  EXPECT_EQ(distance(play(player, *a, 64, 40, 40, 9), want), 0);
  auto again = player.driver().fork(*alone);
  ASSERT_TRUE(again.ok());
}

// (6), (7) Residency stays within what the keepers declare, bytes are those that were priced, and all of them
// go back.
TEST_P(Conformance, BytesAreThosePricedAndGoBack) {
  Player player(model());
  PageArena& arena = player.store().arena();
  auto seq = player.open(GetParam().text);
  const Plan& plan = seq->plan();
  arena.reset_peak();
  play(player, *seq, 64);
  SeqView view;
  view.prompt = kPrompt, view.max_new = kSteps + 1;
  const Cost cost = plan.cost(view);
  EXPECT_EQ(player.driver().bytes(*seq), cost.resident_bytes);
  EXPECT_EQ(arena.live_bytes(), cost.resident_bytes);
  EXPECT_LE(arena.peak_bytes(), cost.peak_bytes);
  EXPECT_GE(arena.peak_bytes() * 10, cost.peak_bytes * 9) << "the price is far above what was used";
  double resident = 0;
  std::vector<int64_t> held(ToyModel::kLayers, kPrompt + kSteps);
  view.resident = held;
  view.staged = plan.staging == Staging::kLayer;
  const int64_t slack = plan.store_spec.tail + 3 * plan.store_spec.grain;
  for (int l = 0; l < ToyModel::kLayers; ++l) {
    resident += double(seq->kv().resident(l)) / ToyModel::kLayers;
    int64_t most = kPrompt + kSteps;
    for (const auto& k : plan.keep) most = std::min(most, k->peak(l, view));
    EXPECT_LE(seq->kv().resident(l), most + (plan.store_spec.grain > 1 ? slack : 0));
  }
  EXPECT_DOUBLE_EQ(resident, cost.resident_tokens);
  const double read = double(seq->counters().last_read_tokens) / ToyModel::kLayers;
  EXPECT_LE(read, cost.read_tokens + 1e-9);
  seq.reset();
  EXPECT_EQ(arena.live_pages(), 0);
}

// (10) A row among rows of every other plan is the same row, bit for bit.
TEST_P(Conformance, NeighboursDoNotShow) {
  Player player(model());
  const auto alone = player.open(GetParam().text);
  const States want = play(player, *alone, 64, kPrompt, 40);
  std::vector<std::unique_ptr<PlanSequence>> seqs;
  std::vector<PlanSequence*> rows;
  const auto all = compositions(model().kv());
  for (size_t i = 0; i < 8; ++i) {
    const std::string& text = i == 3 ? GetParam().text : all[(i * 5 + 1) % all.size()].text;
    seqs.push_back(player.open(text));
    player.prefill(
        *seqs.back(), random_ids(i == 3 ? 3 : 40 + i, i == 3 ? kPrompt : 30 + 17 * int64_t(i)), 32, 41);
    rows.push_back(seqs.back().get());
  }
  const std::vector<int32_t> mine = random_ids(103, kSteps);
  for (int64_t step = 0; step < 40; ++step) {
    std::vector<int32_t> ids = random_ids(500 + uint64_t(step), 8);
    ids[3] = mine[size_t(step)];
    const States got = player.decode(rows, ids);
    ASSERT_EQ(distance({got[3]}, {want[size_t(step) + 1]}), 0) << "step " << step;
  }
}

// (11) An eviction that finds no page leaves the sequence usable and unchanged by it.
TEST_P(Conformance, ExhaustedEvictionChangesNothing) {
  Player player(model());
  PageArena& arena = player.store().arena();
  const auto seq = player.open(GetParam().text);
  player.prefill(*seq, random_ids(3, kPrompt), 64, kSteps + 1);
  const std::vector<int32_t> ids = random_ids(103, kSteps);
  int failures = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    auto before = player.driver().fork(*seq);
    ASSERT_TRUE(before.ok());
    const int64_t tokens = seq->kv().resident(ToyModel::kLayers - 1);
    arena.fail_after_for_test(step % 7);
    PlanSequence* one = seq.get();
    std::vector<Status> status;
    const DriverRow row{one, 1, true, false};
    if (!player.driver()
             .begin(std::span(&row, 1))
             .ok()) {  // the step itself found no page: as if never begun
      arena.fail_after_for_test(-1);
      EXPECT_EQ(seq->kv().resident(ToyModel::kLayers - 1), tokens);
      ++failures;
      player.decode(*seq, ids[size_t(step)]);
      continue;
    }
    arena.fail_after_for_test(-1);
    std::vector<float> x;
    model().embed(std::span(&ids[size_t(step)], 1), x);
    ThreadPool pool(1);
    Stream stream(pool);
    for (int l = 0; l < ToyModel::kLayers; ++l) model().layer(l, x, player.driver(), stream);
    arena.fail_after_for_test(0);
    const Status committed = player.driver().commit().front();
    arena.fail_after_for_test(-1);
    player.store().check(seq->kv());
    if (!committed.ok()) {
      ++failures;
      EXPECT_EQ(committed.code(), Code::kExhausted);
      EXPECT_EQ(seq->kv().resident(ToyModel::kLayers - 1), tokens + 1);
      return;  // the request ends with the error; its pages are checked by the fixture's end
    }
  }
  SUCCEED() << failures << " failures were met";
}

// (12) Every field that says it changes the bytes or the reads changes the fingerprint that promises it.
TEST(Fingerprints, FieldsEnterThemAsTheySay) {
  struct Bump final : FieldVisitor {
    std::vector<std::pair<std::string, Affects>> texts;
    void operator()(const Field& f, int64_t& v) override {
      const int64_t up = f.power_of_two ? v * 2 : v + std::max<int64_t>(f.multiple, f.odd ? 2 : 1);
      if (double(up) <= f.max) texts.emplace_back(std::string(f.name) + "=" + std::to_string(up), f.affects);
    }
    void operator()(const Field& f, double& v) override {
      texts.emplace_back(std::string(f.name) + "=" + std::to_string(v + 1 <= f.max ? v + 1 : v / 2),
                         f.affects);
    }
    void operator()(const Field& f, bool& v) override {
      texts.emplace_back(std::string(f.name) + (v ? "=off" : "=on"), f.affects);
    }
    void operator()(const Field& f, TokenBudget& v) override {
      texts.emplace_back(std::string(f.name) + "=" + std::to_string(v.tokens + 16), f.affects);
    }
    void operator()(const Field&, std::string&) override {}
    void choice(const Field& f, int& v, std::span<const char* const> names) override {
      if (names.size() > 1)
        texts.emplace_back(std::string(f.name) + "=" + names[size_t(v) == 0 ? 1 : 0], f.affects);
    }
  };
  int checked = 0;
  for (const StageEntry* e : stage_entries()) {
    const auto base = parse_plan(e->name, model().kv());
    ASSERT_TRUE(base.ok()) << base.status().message();
    Bump bump;
    e->make()->visit(bump);
    for (const auto& [text, affects] : bump.texts) {
      const auto plan = parse_plan(std::string(e->name) + "(" + text + ")", model().kv());
      if (!plan.ok()) continue;  // not legal by itself
      ++checked;
      const bool new_page =
          (*plan)->page != (*base)->page;  // a unit larger than a page: the page grows with it
      EXPECT_EQ((*plan)->state_id != (*base)->state_id, affects == Affects::kState || new_page)
          << e->name << " " << text;
      EXPECT_EQ((*plan)->read_id != (*base)->read_id, affects != Affects::kNothing) << e->name << " " << text;
    }
  }
  EXPECT_GE(checked, 15);
}

}  // namespace
}  // namespace se::testing
