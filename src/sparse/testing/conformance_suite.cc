// The checks of the conformance suite (conformance.h), one function each.
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>

#include "sparse/testing/conformance.h"
#include "sparse/testing/toy_model.h"
#include "sparse/windows.h"

namespace se::testing {
namespace {

constexpr int64_t kPrompt = 150, kSteps = 75;
using States = std::vector<std::vector<float>>;

// One plan on one model: what every check is given.
struct Subject {
  std::shared_ptr<const TestModel> model;
  Composition c;

  std::vector<int32_t> ids(uint64_t seed, int64_t n) const { return random_ids(seed, n, model->vocab()); }
  int full_layer() const {  // the last one
    int l = model->layers() - 1;
    while (model->kv().layers[size_t(l)].kind != LayerKind::kFull) --l;
    return l;
  }
  // What the price of a prompt through all layers may exceed this cut by: windows are priced at the most that
  // any cut can hold, at most window_pages more than one did (windows.h).
  int64_t cut_slack(const Plan& plan) const {
    int64_t bytes = 0;
    for (size_t g = 0; g < plan.layout->groups().size(); ++g) {
      const int window = plan.layout->groups()[g].window;
      if (window > 0 && plan.staging == Staging::kNone)
        bytes += window_pages(window, plan.page) * plan.layout->page_bytes(int(g), Block::kPayload);
    }
    return bytes;
  }
  // The hidden states of a prompt's end and of every decode step after it.
  States play(Player& player,
              PlanSequence& seq,
              int64_t chunk,
              int64_t prompt = kPrompt,
              int64_t steps = kSteps,
              uint64_t seed = 3) const {
    States out;
    out.push_back(player.prefill(seq, ids(seed, prompt), chunk, steps + 1));
    for (int32_t id : ids(seed + 100, steps)) out.push_back(player.decode(seq, id));
    return out;
  }
};

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

// (1) A budget over the row's length changes nothing, with the selecting path forced.
void UnlimitedBudgetEqualsPassingAll(const Subject& s) {
  const Composition& c = s.c;
  Player player(*s.model);
  const auto base = player.open(c.baseline);
  const States want = s.play(player, *base, 64);
  player.driver().force_select_for_test(true);
  const auto seq = player.open(c.unlimited);
  const States got = s.play(player, *seq, 64);
  EXPECT_EQ(distance(got, want), 0);
}

void ExactStoresEqualDense(const Subject& s) {
  const Composition& c = s.c;
  Player player(*s.model);
  const auto seq = player.open(c.unlimited);
  const CodecSpec& store = seq->plan().store_spec;
  const auto dense = player.open("dense");
  const bool exact = store.tail == 0 && !store.present_as_stored;
  const double d = distance(s.play(player, *seq, 64), s.play(player, *dense, 64));
  EXPECT_LE(d, exact ? 0.0 : 0.5) << "a lossy store strays far from dense";
}

// (3) The cut of the prompt does not show where the plan says so, nor do threads.
void ChunksDoNotShow(const Subject& s) {
  Player player(*s.model), threads(*s.model, 64 << 20, 3);
  const auto one = threads.open(s.c.text);
  const States want = s.play(threads, *one, kPrompt);
  for (int64_t chunk : {1, 7, 64}) {
    const auto seq = player.open(s.c.text);
    EXPECT_EQ(distance(s.play(player, *seq, chunk, kPrompt, 20), {want.begin(), want.begin() + 21}), 0)
        << "chunks of " << chunk;
  }
}

// (5) A fork and its sibling go on as if alone. (Chain) A second turn after decode steps is legal in both.
void ForksDoNotTouchTheirSiblings(const Subject& s) {
  Player player(*s.model);
  const auto alone = player.open(s.c.text);
  s.play(player, *alone, 64);
  const States want = s.play(player, *alone, 64, 40, 40, 9);
  const auto a = player.open(s.c.text);
  s.play(player, *a, 64);
  auto fork = player.driver().fork(*a);
  ASSERT_TRUE(fork.ok());
  const auto b = fork.take();
  States other;
  for (int32_t id : s.ids(77, 50)) other.push_back(player.decode(*b, id));
  EXPECT_EQ(distance(s.play(player, *a, 64, 40, 40, 9), want), 0);
  auto again = player.driver().fork(*alone);
  ASSERT_TRUE(again.ok());
}

// (6), (7) Residency stays within what the keepers declare, bytes are those that were priced, and all of them
// go back.
void BytesAreThosePricedAndGoBack(const Subject& s) {
  Player player(*s.model);
  PageArena& arena = player.store().arena();
  auto seq = player.open(s.c.text);
  const Plan& plan = seq->plan();
  arena.reset_peak();
  s.play(player, *seq, 64);
  SeqView view;
  view.prompt = kPrompt, view.max_new = kSteps + 1;
  const Cost cost = plan.cost(view);
  EXPECT_EQ(player.driver().bytes(*seq), cost.resident_bytes);
  EXPECT_EQ(arena.live_bytes(), cost.resident_bytes);
  EXPECT_LE(arena.peak_bytes(), cost.peak_bytes);
  EXPECT_GE((arena.peak_bytes() + s.cut_slack(plan)) * 10, cost.peak_bytes * 9)
      << "the price is far above what was used";
  double resident = 0;
  std::vector<int64_t> whole(size_t(s.model->layers()), kPrompt + kSteps);
  view.resident = whole;
  view.staged = plan.staging == Staging::kLayer;
  const int64_t slack = plan.store_spec.tail + 3 * plan.store_spec.grain;
  const int full = plan.model.full_layers();
  for (int l = 0; l < s.model->layers(); ++l) {
    if (const LayerKv& layer = plan.model.layers[size_t(l)]; layer.kind == LayerKind::kWindow) {
      EXPECT_LE(seq->kv().resident(l),
                window_pages(layer.window, plan.page) * plan.page + plan.store_spec.tail + plan.page);
      continue;
    }
    resident += double(seq->kv().resident(l)) / full;
    int64_t most = kPrompt + kSteps;
    for (const auto& k : plan.keep) most = std::min(most, k->peak(l, view));
    EXPECT_LE(seq->kv().resident(l), most + (plan.store_spec.grain > 1 ? slack : 0));
  }
  EXPECT_DOUBLE_EQ(resident, cost.resident_tokens);
  const double read = double(seq->counters().last_read_tokens) / full;
  EXPECT_LE(read, cost.read_tokens + 1e-9);

  SeqView turn;  // a second one, shorter than some windows, then a longer one
  for (int64_t prompt : {int64_t(9), kPrompt}) {
    turn.logical = seq->logical(), turn.prompt = prompt, turn.max_new = 31;
    std::vector<std::array<int64_t, 2>> held;
    for (size_t g = 0; g < plan.layout->groups().size(); ++g)
      held.push_back({seq->kv().table(int(g)).paged, seq->kv().table(int(g)).tail});
    const Cost next = plan.cost(turn, held);
    arena.reset_peak();
    s.play(player, *seq, 64, prompt, 30, 11);
    EXPECT_LE(arena.peak_bytes(), next.peak_bytes) << "a turn of " << prompt;
    EXPECT_LE(player.driver().bytes(*seq), next.resident_bytes) << "a turn of " << prompt;
    if (plan.keep.empty()) {
      EXPECT_EQ(player.driver().bytes(*seq), next.resident_bytes) << "a turn of " << prompt;
    }
  }
  seq.reset();
  EXPECT_EQ(arena.live_pages(), 0);
}

// (10) A row among rows of every other plan is the same row, bit for bit.
void NeighboursDoNotShow(const Subject& s) {
  Player player(*s.model);
  const auto alone = player.open(s.c.text);
  const States want = s.play(player, *alone, 64, kPrompt, 24);
  std::vector<std::unique_ptr<PlanSequence>> seqs;
  std::vector<PlanSequence*> rows;
  const auto all = compositions(s.model->kv());
  for (size_t i = 0; i < 8; ++i) {
    const std::string& text = i == 3 ? s.c.text : all[(i * 5 + 1) % all.size()].text;
    seqs.push_back(player.open(text));
    player.prefill(*seqs.back(), s.ids(i == 3 ? 3 : 40 + i, i == 3 ? kPrompt : 30 + 17 * int64_t(i)), 32, 41);
    rows.push_back(seqs.back().get());
  }
  const std::vector<int32_t> mine = s.ids(103, kSteps);
  for (int64_t step = 0; step < 24; ++step) {
    std::vector<int32_t> ids = s.ids(500 + uint64_t(step), 8);
    ids[3] = mine[size_t(step)];
    const States got = player.decode(rows, ids);
    ASSERT_EQ(distance({got[3]}, {want[size_t(step) + 1]}), 0) << "step " << step;
  }
}

// (11) An eviction that finds no page leaves the sequence whole and as the step left it: nothing is picked.
void ExhaustedEvictionChangesNothing(const Subject& s) {
  Player player(*s.model);
  PageArena& arena = player.store().arena();
  const auto seq = player.open(s.c.text);
  player.prefill(*seq, s.ids(3, kPrompt), 64, kSteps + 1);
  const std::vector<int32_t> ids = s.ids(103, kSteps);
  int failures = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    auto sharing = player.driver().fork(*seq);  // so that pages have to be copied, too
    ASSERT_TRUE(sharing.ok());
    const int64_t tokens = seq->kv().resident(s.full_layer());
    arena.fail_after_for_test(step % 7);
    PlanSequence* one = seq.get();
    std::vector<Status> status;
    const DriverRow row{one, 1, true, false};
    if (!player.driver()
             .begin(std::span(&row, 1))
             .ok()) {  // the step itself found no page: as if never begun
      arena.fail_after_for_test(-1);
      EXPECT_EQ(seq->kv().resident(s.full_layer()), tokens);
      ++failures;
      player.decode(*seq, ids[size_t(step)]);
      continue;
    }
    arena.fail_after_for_test(-1);
    std::vector<float> x;
    s.model->embed(std::span(&ids[size_t(step)], 1), x);
    ThreadPool pool(1);
    Stream stream(pool);
    for (int l = 0; l < s.model->layers(); ++l) s.model->layer(l, x, player.driver(), stream);
    arena.fail_after_for_test(0);
    const Status committed = player.driver().commit().front();
    arena.fail_after_for_test(-1);
    player.store().check(seq->kv());
    if (!committed.ok()) {
      ++failures;
      EXPECT_EQ(committed.code(), Code::kExhausted);
      EXPECT_EQ(seq->kv().resident(s.full_layer()), tokens + 1);
      return;  // the request ends with the error; its pages are checked by the fixture's end
    }
  }
  SUCCEED() << failures << " failures were met";
}

class CheckOne final : public ::testing::Test {
 public:
  CheckOne(void (*check)(const Subject&), const Subject& subject) : check_(check), subject_(subject) {}
  void TestBody() override { check_(subject_); }

 private:
  void (*check_)(const Subject&);
  Subject subject_;
};

}  // namespace

int add_conformance_tests(const std::string& name, std::shared_ptr<const TestModel> model) {
  constexpr std::pair<const char*, void (*)(const Subject&)> kChecks[] = {
      {"UnlimitedBudgetEqualsPassingAll", UnlimitedBudgetEqualsPassingAll},
      {"ExactStoresEqualDense", ExactStoresEqualDense},
      {"ChunksDoNotShow", ChunksDoNotShow},
      {"ForksDoNotTouchTheirSiblings", ForksDoNotTouchTheirSiblings},
      {"BytesAreThosePricedAndGoBack", BytesAreThosePricedAndGoBack},
      {"NeighboursDoNotShow", NeighboursDoNotShow},
      {"ExhaustedEvictionChangesNothing", ExhaustedEvictionChangesNothing},
  };
  int added = 0;
  for (const Composition& c : compositions(model->kv())) {
    for (const auto& [check_name, check] : kChecks) {
      std::string test = std::string(check_name) + "_" + c.text;
      for (char& x : test) x = std::isalnum(static_cast<unsigned char>(x)) ? x : '_';
      const Subject subject{model, c};
      ::testing::RegisterTest(
          ("Conformance_" + name).c_str(),
          test.c_str(),
          nullptr,
          nullptr,
          __FILE__,
          __LINE__,
          [check, subject]() -> ::testing::Test* { return new CheckOne(check, subject); });
      ++added;
    }
  }
  return added;
}

}  // namespace se::testing
