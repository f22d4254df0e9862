// Costs against a store that really takes the pages: a small driver that moves counts and tables, and no
// bytes.
#include <gtest/gtest.h>

#include <numeric>

#include "kv/kv_store.h"
#include "sparse/plan_testing.h"

namespace se {
namespace {

using testing::build;

class Life {
 public:
  Life(std::shared_ptr<const Plan> plan, KvStore& store) : plan_(std::move(plan)), store_(store) {
    auto seq = store.create_sequence(plan_->layout);
    EXPECT_TRUE(seq.ok());
    seq_ = seq.take();
    resident_.resize(plan_->model.layers.size());
    excess_.resize(resident_.size());
  }
  KvSequence& seq() { return *seq_; }
  int64_t logical() const { return logical_; }
  double read_tokens() const { return read_; }
  std::vector<std::array<int64_t, 2>> held() const {
    std::vector<std::array<int64_t, 2>> h;
    for (int g = 0; g < groups(); ++g) h.push_back({seq_->table(g).paged, seq_->table(g).tail});
    return h;
  }

  void prompt(int64_t n, int64_t cut) {
    prompt_ = logical_ + n;
    plan_->staging == Staging::kNone ? append(n, cut) : stage(n, cut);
    logical_ += n;
  }

  void step() {
    double read = 0;
    for (size_t l = 0; l < resident_.size(); ++l) {
      const KvTable& t = seq_->table(plan_->layout->group_of(int(l)));
      const bool narrow = plan_->read && plan_->read_spec.source[l] >= 0;
      read += double((narrow ? plan_->read->read_tokens(t.paged) : t.paged) + t.tail);
    }
    read_ = read / double(resident_.size());
    const std::vector<int32_t> position = {int32_t(logical_++)};
    ++generated_;
    for (int g = 0; g < groups(); ++g) {
      if (plan_->store_spec.tail > 0) {
        need(store_.append_tail(*seq_, g, position));
      } else {
        need(store_.append(*seq_, position, std::array{g}));
      }
    }
    evict();
    for (int g = 0; g < groups() && plan_->store_spec.tail > 0; ++g) {
      if (seq_->table(g).tail == plan_->store_spec.tail)
        need(store_.close_tail(*seq_, g, plan_->store_spec.grain));
    }
  }

 private:
  static void need(const Status& s) { ASSERT_TRUE(s.ok()) << s.message(); }
  int groups() const { return int(plan_->layout->groups().size()); }
  int64_t to_pages(int64_t n) const {
    const CodecSpec& c = plan_->store_spec;
    return c.tail == 0 ? n : n >= c.residual ? (n - c.residual) / c.grain * c.grain : 0;
  }
  static std::vector<int32_t> range(int64_t begin, int64_t n) {
    std::vector<int32_t> v(static_cast<size_t>(n));
    std::iota(v.begin(), v.end(), int32_t(begin));
    return v;
  }

  void append(int64_t n, int64_t cut) {
    for (int64_t at = 0; at < n; at += cut) {
      const int64_t m = std::min(cut, n - at);
      const std::vector<int32_t> all = range(logical_ + at, m);
      const std::span<const int32_t> positions(all);
      for (int g = 0; g < groups(); ++g) {
        const int64_t tail = seq_->table(g).tail, pages = to_pages(tail + m), old = std::min(tail, pages);
        need(store_.close_tail(*seq_, g, old));
        if (pages > old) need(store_.append(*seq_, positions.first(size_t(pages - old)), std::array{g}));
        if (plan_->store_spec.tail > 0)
          need(store_.append_tail(*seq_, g, positions.subspan(size_t(pages - old))));
      }
    }
  }

  // -1: nothing is due
  int64_t wanted(int layer, int64_t extra, bool decode) {
    for (size_t l = 0; l < resident_.size(); ++l) resident_[l] = seq_->resident(int(l)) + extra - excess_[l];
    SeqView v;
    v.prompt = prompt_, v.logical = logical_ + extra, v.generated = generated_, v.resident = resident_;
    v.decode = decode, v.last_chunk = !decode, v.staged = true;
    int64_t left = -1;
    for (const auto& k : plan_->keep) {
      if (k->due(layer, v))
        left = std::min(left < 0 ? resident_[size_t(layer)] : left, k->resident(layer, v));
    }
    return left;
  }

  void stage(int64_t n, int64_t cut) {
    auto staged = store_.create_sequence(plan_->staging_layout);
    ASSERT_TRUE(staged.ok());
    for (int64_t at = 0; at < n; at += cut) {
      need(store_.append(**staged, range(logical_ + at, std::min(cut, n - at))));
    }
    std::vector<KvTable> tables;
    PageRef block;
    std::vector<int64_t> excess(excess_.size(), 0);
    for (int g = 0; g < groups(); ++g) {
      const int layer = plan_->layout->groups()[size_t(g)].layers[0];
      const KvTable& old = seq_->table(g);
      const int64_t left = wanted(layer, n, false);
      // Survivors: the newest; groups that are cut stay whole.
      int64_t drop = left < 0 ? 0 : old.tokens() + n - left;
      const int64_t from_old = std::min(drop, old.paged) / plan_->store_spec.grain * plan_->store_spec.grain;
      std::vector<int32_t> survivors = range(from_old, old.paged - from_old);
      drop = drop > old.paged ? drop - old.paged : 0;
      const int64_t fresh = n - drop;
      std::vector<int32_t> added(old.positions.begin() + old.paged, old.positions.end());
      for (int32_t p : range(logical_ + drop, fresh)) added.push_back(p);
      const std::span<const int32_t> positions(added);
      const size_t pages = size_t(to_pages(int64_t(added.size())));
      auto table =
          store_.stage_table(*seq_, {g, survivors}, positions.first(pages), positions.subspan(pages));
      ASSERT_TRUE(table.ok()) << table.status().message();
      for (int l : plan_->layout->groups()[size_t(g)].layers) {
        excess[size_t(l)] = left < 0 ? excess_[size_t(l)] : table->tokens() - left;
      }
      tables.push_back(table.take());
      if (plan_->store_spec.tail > 0 && logical_ > 0 && !block) block = store_.clone_block(*seq_).take();
    }
    store_.install(*seq_, std::move(tables), std::move(block));
    excess_ = excess;
  }

  void evict() {
    std::vector<std::vector<int32_t>> kept;
    std::vector<GroupKeep> lists;
    kept.reserve(size_t(groups()));
    std::vector<int64_t> left;
    for (int g = 0; g < groups(); ++g) {
      const int layer = plan_->layout->groups()[size_t(g)].layers[0];
      const int64_t want = wanted(layer, 0, true);
      if (want < 0) continue;
      const KvTable& t = seq_->table(g);
      const int64_t from =
          std::max<int64_t>(0, t.tokens() - want) / plan_->store_spec.grain * plan_->store_spec.grain;
      kept.push_back(range(from, t.paged - from));
      lists.push_back({g, kept.back()});
      left.push_back(want);
    }
    need(store_.keep(*seq_, lists));
    for (size_t i = 0; i < lists.size(); ++i) {
      for (int l : plan_->layout->groups()[size_t(lists[i].group)].layers) {
        excess_[size_t(l)] = seq_->resident(l) - left[i];
      }
    }
  }

  std::shared_ptr<const Plan> plan_;
  KvStore& store_;
  std::unique_ptr<KvSequence> seq_;
  std::vector<int64_t> resident_, excess_;
  int64_t logical_ = 0, prompt_ = 0, generated_ = 0;
  double read_ = 0;
};

Cost price(const Plan& plan,
           int64_t logical,
           int64_t prompt,
           int64_t max_new,
           std::span<const std::array<int64_t, 2>> held = {}) {
  SeqView request;
  request.logical = logical, request.prompt = prompt, request.max_new = max_new;
  return plan.cost(request, held);
}

double mean_resident(const Plan& plan, const KvSequence& seq) {
  double sum = 0;
  for (size_t l = 0; l < plan.model.layers.size(); ++l) sum += double(seq.resident(int(l)));
  return sum / double(plan.model.layers.size());
}

const char* const kPlans[] = {"",
                              "dtype(type=f32)",
                              "half+units",
                              "ring",
                              "ring(residual=0)",
                              "ring(residual=64)+units(budget=128)",
                              "ends",
                              "votes(budget=100)",
                              "votes(budget=100)+units",
                              "votes(budget=100)+ring",
                              "ends(budget=200)+votes(budget=25%)+ring+units(unit=32)",
                              "votes(budget=100,every=16)",
                              "votes(budget=96,every=40)+ring+units",
                              "ends(budget=64,every=64)+ring(residual=0)",
                              "ends(budget=128,every=40)+votes(budget=64,every=100)+half"};

TEST(Cost, EqualsWhatTheStoreAllocates) {
  for (const char* text : kPlans) {
    const auto plan = build(text);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    for (const int64_t prompt : {1, 15, 16, 17, 31, 64, 95, 100, 101, 333, 700}) {
      for (const int64_t max_new : {1, 2, 33, 150}) {
        auto store = KvStore::create(int64_t(64) << 20);
        ASSERT_TRUE(store.ok());
        Life life(*plan, **store);
        (*store)->arena().reset_peak();
        life.prompt(prompt, 48);
        for (int64_t i = 1; i < max_new; ++i) life.step();
        const Cost cost = price(**plan, 0, prompt, max_new);
        const std::string where = format("'{}', prompt {}, max_new {}", text, prompt, max_new);
        EXPECT_EQ(cost.resident_bytes, (*store)->bytes(life.seq())) << where;
        EXPECT_EQ(cost.resident_bytes, (*store)->arena().live_bytes()) << where;
        EXPECT_EQ(cost.peak_bytes, (*store)->arena().peak_bytes()) << where;
        EXPECT_DOUBLE_EQ(cost.resident_tokens, mean_resident(**plan, life.seq())) << where;
        EXPECT_DOUBLE_EQ(cost.read_tokens, life.read_tokens()) << where;
        EXPECT_LE(cost.transient_bytes, cost.peak_bytes);
      }
    }
  }
}

TEST(Cost, BoundsTheTurnsThatFollow) {
  for (const char* text : kPlans) {
    const auto plan = build(text);
    ASSERT_TRUE(plan.ok());
    const bool exact = (*plan)->keep.empty() || (*plan)->store_spec.grain == 1;
    auto store = KvStore::create(int64_t(64) << 20);
    ASSERT_TRUE(store.ok());
    Life life(*plan, **store);
    int64_t logical = 0;
    for (const int64_t prompt : {300, 5, 77, 160}) {
      const Cost cost = price(**plan, logical, prompt, 20, life.held());
      (*store)->arena().reset_peak();
      life.prompt(prompt, 64);
      for (int i = 1; i < 20; ++i) life.step();
      logical = life.logical();
      const std::string where = format("'{}', prompt {}", text, prompt);
      if (exact) {
        EXPECT_EQ(cost.resident_bytes, (*store)->bytes(life.seq())) << where;
      } else {
        EXPECT_GE(cost.resident_bytes, (*store)->bytes(life.seq())) << where;
      }
      EXPECT_GE(cost.peak_bytes, (*store)->arena().peak_bytes()) << where;
    }
  }
}

TEST(Cost, CountsTheBytesOfTheLastStep) {
  // 3 layers, 2 heads; 16 halves for each of K and V: 128 bytes a token and layer.
  EXPECT_EQ(price(**build(""), 0, 100, 1).read_bytes, 0) << "nothing is decoded";
  EXPECT_EQ(price(**build(""), 0, 100, 2).read_bytes, 3 * 100 * 128);
  // Layer 0 reads all of 640, the others 64 tokens and 40 bounds of 2 heads x 16 halves.
  const Cost cost = price(**build("units"), 0, 640, 2);
  EXPECT_EQ(cost.read_bytes, 640 * 128 + 2 * (64 * 128 + 40 * 64));
  EXPECT_DOUBLE_EQ(cost.read_tokens, (640 + 64 + 64) / 3.0);
  // A byte per element behind a ring of 64, of which 36 are in use: 64 groups of 32 are codes.
  EXPECT_EQ(price(**build("ring"), 0, 100, 2).read_bytes, 3 * (2 * 2 * 32 * 16 + 36 * 128));
}

TEST(Cost, TransientIsWhatGoesAgain) {
  const Cost cost = price(**build("votes(budget=100)"), 0, 700, 1);
  const int64_t page = 16 * 128;
  EXPECT_EQ(cost.resident_bytes, 3 * 7 * page);
  EXPECT_EQ(cost.transient_bytes, 44 * page);
  EXPECT_EQ(cost.peak_bytes, (3 * 7 + 44) * page);
}

}  // namespace
}  // namespace se
