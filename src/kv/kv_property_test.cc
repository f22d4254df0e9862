// Random operations on random sequences of random layouts, against vectors of tokens. A failure prints the
// seed and the step; the same seed with fewer steps does the same steps.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "kv/kv_test_model.h"

namespace se {
namespace {
using namespace kv_testing;

std::vector<Case> cases() {
  const auto payload = Block::kPayload, index = Block::kIndex, state = Block::kState;
  return {
      {"plain", model_of({2}), {{{0}, 0}}, {component(0, "k", payload, 1, DType::kF16, {4})}, 16, 0},
      {"two groups",
       model_of({2, 1, 2}),
       {{{0, 1}, 0}, {{2}, 1}},
       {component(0, "k", payload, 1, DType::kF16, {5}),
        component(1, "v", payload, 1, DType::kF32, {2, 3}),
        component(2, "lo", index, 4, DType::kF16, {3}),
        component(3, "sum", state, 1, DType::kF32, {}),
        component(4, "memory", state, kPerSequence, DType::kF32, {7})},
       16,
       0},
      {"ring",
       model_of({2, 2}),
       {{{0, 1}, 0}},
       {component(0, "codes", payload, 8, DType::kU8, {8, 3}),
        component(1, "scale", payload, 1, DType::kF16, {2}),
        component(2, "ring", payload, kPerSequence, DType::kF16, {20, 2, 3}, false),
        component(3, "lo", index, 16, DType::kF32, {2}, false),
        component(4, "sum", state, 1, DType::kF32, {2})},
       32,
       20},
      {"ring, grouped state",
       model_of({1, 3}),
       {{{0}, 0}, {{1}, 0}},
       {component(0, "k", payload, 1, DType::kF32, {2}),
        component(1, "sum", state, 4, DType::kF32, {2}),
        component(2, "ring", payload, kPerSequence, DType::kF32, {9, 3}, false),
        component(3, "memory", state, kPerSequence, DType::kF32, {5})},
       16,
       9},
  };
}

class World : public ModelWorld {
 public:
  World(const Case& c, uint64_t seed) : ModelWorld(c), rng_(seed) {}

  void step() {
    const bool injected = below(5) == 0;
    store_->arena().fail_after_for_test(injected ? below(6) : -1);
    if (live_.empty() || (live_.size() < 5 && below(12) == 0)) {
      create();
    } else {
      Live& live = live_[size_t(below(int64_t(live_.size())))];
      const int64_t what = below(20);
      if (what < 7)
        append(live);
      else if (what < 11)
        keep(live, injected);
      else if (what < 13)
        fork(live);
      else if (what < 15)
        stage(live);
      else if (what < 17)
        touch(live);
      else if (what < 18)
        index(live);
      else if (what < 19)
        below(2) == 0 ? place_and_go_back(live) : drop(live);
      else if (below(2) == 0)
        std::swap(live, live_.back()), live_.pop_back();
    }
    store_->arena().fail_after_for_test(-1);
  }

  int64_t failures() const { return failed_; }

 private:
  int64_t below(int64_t n) { return rng_.below(n); }
  bool failed(const Status& status, int64_t live_before) {
    if (status.ok()) return false;
    EXPECT_EQ(status.code(), Code::kExhausted) << status.message();
    EXPECT_EQ(store_->arena().live_bytes(), live_before) << "a failed operation took pages";
    ++failed_;
    return true;
  }
  std::vector<Token> fresh_tokens(Model& m, int64_t n) {
    std::vector<Token> tokens;
    for (int64_t i = 0; i < n; ++i) tokens.push_back({m.next++, ++seeds_});
    return tokens;
  }

  void create() {
    const int64_t before = store_->arena().live_bytes();
    auto made = store_->create_sequence(layout_);
    if (failed(made.status(), before)) return;
    Model m;
    m.groups.resize(case_.groups.size());
    live_.push_back({made.take(), m});
  }

  void fork(Live& live) {
    if (live_.size() >= 5) return;
    const int64_t before = store_->arena().live_bytes();
    auto made = store_->fork(*live.seq);
    if (failed(made.status(), before)) return;
    Model m = live.model;
    live_.push_back({made.take(), m});
  }

  // As a codec does: without a ring straight into pages; with one through it, closing what does not fit.
  void append(Live& live) {
    const int64_t n = below(2 * case_.page), before = store_->arena().live_bytes();
    KvStore& store = *store_;
    bool no_tail = true;
    for (const ModelGroup& g : live.model.groups) no_tail = no_tail && g.tail() == 0;
    if (no_tail && (case_.tail == 0 || below(3) == 0)) {
      Model m = live.model;
      const std::vector<Token> tokens = fresh_tokens(m, n);
      std::vector<int> groups;
      for (size_t g = 0; g < m.groups.size(); ++g) {
        if (below(4) > 0) groups.push_back(int(g));
      }
      if (failed(store.append(*live.seq, positions(tokens), groups), before)) return;
      if (groups.empty()) {
        for (size_t g = 0; g < m.groups.size(); ++g) groups.push_back(int(g));
      }
      for (int g : groups) {
        ModelGroup& group = m.groups[size_t(g)];
        group.tokens.insert(group.tokens.end(), tokens.begin(), tokens.end());
        write_payload(live.seq->table(g), g, group.tokens, group.paged, group.paged + n);
        group.paged += n;
        if (group.paged > 0) {
          EXPECT_EQ(store.slot(*live.seq, g, group.paged - 1) % case_.page, (group.paged - 1) % case_.page);
        }
      }
      live.model = m;
      return;
    }
    const int g = int(below(int64_t(live.model.groups.size())));
    ModelGroup& group = live.model.groups[size_t(g)];
    if (below(2) == 0) {
      const int64_t close = below(group.tail() + 1);
      if (failed(store.close_tail(*live.seq, g, close), before)) return;
      write_payload(live.seq->table(g), g, group.tokens, group.paged, group.paged + close);
      group.paged += close;
      return;
    }
    Model m = live.model;
    const std::vector<Token> tokens = fresh_tokens(m, std::min(n, case_.tail - group.tail()));
    if (failed(store.append_tail(*live.seq, g, positions(tokens)), before)) return;
    const int64_t first = group.tail();
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int64_t slot = store.ring_slot(*live.seq, g, first + int64_t(i));
      EXPECT_EQ(slot / case_.tail, live.seq->item());
      write_ring(live.seq->item(), g, slot % case_.tail, tokens[i].seed);
    }
    group.tokens.insert(group.tokens.end(), tokens.begin(), tokens.end());
    live.model.next = m.next;
  }

  // Windows: whole pages in front go.
  void drop(Live& live) {
    const int g = int(below(int64_t(live.model.groups.size())));
    ModelGroup& group = live.model.groups[size_t(g)];
    const int64_t before = below(live.model.next + 1), page = case_.page,
                  live_bytes = store_->arena().live_bytes();
    store_->drop_before(*live.seq, g, before);
    EXPECT_LE(store_->arena().live_bytes(), live_bytes);
    while (group.paged >= page && group.tokens[size_t(page) - 1].position < before) {
      group.tokens.erase(group.tokens.begin(), group.tokens.begin() + page);
      group.paged -= page;
    }
  }

  // A step that cannot be placed whole: what was counted in goes again.
  void place_and_go_back(Live& live) {
    const std::vector<KvMark> marks = store_->mark(*live.seq);
    const std::vector<int32_t> more(size_t(below(2 * case_.page)), -1);
    for (int g = 0; g < int(marks.size()); ++g) {
      const KvTable& t = live.seq->table(g);
      Status status = store_->close_tail(*live.seq, g, below(4) == 0 ? t.tail : below(t.tail + 1));
      if (status.ok() && t.tail == 0) status = store_->append(*live.seq, more, std::array{g});
      const int64_t room = std::min(case_.tail - t.tail, int64_t(more.size()));
      if (status.ok()) status = store_->append_tail(*live.seq, g, std::span(more).first(size_t(room)));
      if (!status.ok()) break;
    }
    store_->rollback(*live.seq, marks);
  }

  // Ordinals of paged tokens in whole groups of the grain; the last short group stays where state items bind
  // it to the tail.
  std::vector<int32_t> survivors(const ModelGroup& g) {
    const int64_t style = below(4), sink = below(40), recent = below(60), odds = 1 + below(4);
    std::vector<int32_t> out;
    for (int64_t i = 0; i < g.paged; i += grain_) {
      const int64_t end = std::min(i + grain_, g.paged);
      const bool bound = g.tail() > 0 && state_per_ > 1 && end - i < grain_;
      const bool in = style == 0   ? true
                      : style == 1 ? i < sink || i >= g.paged - recent
                                   : below(odds + 1) < odds;
      for (int64_t o = i; o < end && (in || bound); ++o) out.push_back(int32_t(o));
    }
    if (style == 0 && g.tail() == 0)
      out.resize(size_t(std::max<int64_t>(0, g.paged - sink / grain_ * grain_) / grain_ * grain_));
    return out;
  }

  static int64_t same_pages(std::span<const int32_t> row, int64_t tokens, int64_t page) {
    int64_t whole = 0;
    for (int64_t end = 0; end < tokens; ++whole) {
      end = std::min(end + page, tokens);
      if (int64_t(row.size()) < end || row[size_t(end - 1)] != end - 1) break;
    }
    return whole;
  }

  // Most live bytes while keep works, by the documented rule.
  int64_t predict_peak(const Live& live, const std::vector<GroupKeep>& lists) {
    int64_t now = store_->arena().live_bytes(), peak = now;
    for (const GroupKeep& list : lists) {
      const KvTable& t = live.seq->table(list.group);
      std::vector<int32_t> row(list.ordinals.begin(), list.ordinals.end());
      const int64_t kept = int64_t(row.size()), whole = same_pages(row, t.paged, case_.page);
      for (int64_t i = t.paged; i < t.tokens(); ++i) row.push_back(int32_t(i));
      const int64_t all = int64_t(row.size()), stays = same_pages(row, t.tokens(), case_.page);
      const auto bytes = [&](Block b) { return layout_->page_bytes(list.group, b); };
      now += (layout_->pages(kept) - whole) * (bytes(Block::kPayload) + bytes(Block::kIndex));
      if (bytes(Block::kState)) now += (layout_->pages(all) - stays) * bytes(Block::kState);
      peak = std::max(peak, now);
      for (size_t p = size_t(whole); p < t.payload.size(); ++p) {
        now -= (t.payload[p].shared() ? 0 : t.payload[p].bytes()) +
               (t.index[p].shared() ? 0 : t.index[p].bytes());
      }
      for (size_t p = size_t(stays); p < t.state.size(); ++p) now -= t.state[p].bytes();
    }
    return peak;
  }

  void keep(Live& live, bool injected) {
    std::vector<std::vector<int32_t>> rows;
    std::vector<GroupKeep> lists;
    rows.reserve(case_.groups.size());
    for (size_t g = 0; g < case_.groups.size(); ++g) {
      if (below(4) == 0) continue;
      rows.push_back(survivors(live.model.groups[g]));
      lists.push_back({int(g), rows.back()});
    }
    const int64_t before = store_->arena().live_bytes(), peak = predict_peak(live, lists);
    store_->arena().reset_peak();
    const Status status = store_->keep(*live.seq, lists);
    if (!injected) {
      EXPECT_EQ(status.ok(), peak <= store_->arena().limit_bytes()) << status.message();
    }
    if (failed(status, before)) return;
    EXPECT_EQ(store_->arena().peak_bytes(), peak);
    for (const GroupKeep& list : lists) {
      ModelGroup& group = live.model.groups[size_t(list.group)];
      std::vector<Token> left;
      for (int32_t o : list.ordinals) left.push_back(group.tokens[size_t(o)]);
      left.insert(left.end(), group.tokens.begin() + group.paged, group.tokens.end());
      group.tokens = left;
      group.paged = int64_t(list.ordinals.size());
    }
  }

  void stage(Live& live) {
    Model m = live.model;
    const int64_t before = store_->arena().live_bytes();
    std::vector<KvTable> tables;
    auto block = store_->clone_block(*live.seq);
    Status status = block.status();
    for (size_t g = 0; status.ok() && g < m.groups.size(); ++g) {
      ModelGroup& group = m.groups[g];
      const std::vector<int32_t> kept = survivors(group);
      const bool carry = group.tail() > 0 && (state_per_ > 1 || below(2) == 0);
      std::vector<Token> row, added;
      for (int32_t o : kept) row.push_back(group.tokens[size_t(o)]);
      if (carry) added.assign(group.tokens.begin() + group.paged, group.tokens.end());
      for (const Token& t : fresh_tokens(m, below(2 * case_.page))) added.push_back(t);
      const int64_t tail = below(std::min(case_.tail, int64_t(added.size())) + 1);
      const std::vector<int32_t> pos = positions(added);
      const std::span<const int32_t> all(pos);
      auto table = store_->stage_table(
          *live.seq, {int(g), kept}, all.first(all.size() - size_t(tail)), all.last(size_t(tail)));
      if (!table.ok()) {
        status = table.status();
        break;
      }
      const int64_t begin = int64_t(row.size());
      row.insert(row.end(), added.begin(), added.end());
      group.tokens = row;
      group.paged = int64_t(row.size()) - tail;
      write_payload(*table, int(g), group.tokens, begin, group.paged);
      for (int64_t i = 0; i < tail; ++i) {
        if (*block) write_ring(block->id(), int(g), i, group.tokens[size_t(group.paged + i)].seed);
      }
      tables.push_back(table.take());
    }
    verify(live);  // the old tables still serve
    if (status.ok() && below(4) > 0) {
      store_->install(*live.seq, std::move(tables), block.take());
      live.model = m;
      return;
    }
    tables.clear();
    if (block.ok()) *block = PageRef();
    if (failed(status, before)) return;
    EXPECT_EQ(store_->arena().live_bytes(), before);
  }

  // A method writes the state of a token, and of the sequence.
  void touch(Live& live) {
    const int g = int(below(int64_t(live.model.groups.size())));
    ModelGroup& group = live.model.groups[size_t(g)];
    if (!group.tokens.empty()) {
      const int64_t i = below(int64_t(group.tokens.size())) / state_per_ * state_per_;
      group.tokens[size_t(i)].state = ++seeds_;
      each_item(live.seq->table(g).state,
                g,
                Block::kState,
                i,
                i + 1,
                [&](const Plane& p, int h, char* at, int64_t) {
                  fill(at, p.bytes, seeds_, p.component.index, p.layer, h);
                });
    }
    live.model.memory = ++seeds_;
    for (const Plane& p : planes_) {
      if (p.component.spec.name != "memory") continue;
      for (int h = 0; h < p.heads; ++h) {
        fill(p.of_sequence(live.seq->item()) + h * p.plane.stride[1],
             p.bytes,
             seeds_,
             p.component.index,
             p.layer,
             h);
      }
    }
  }

  // A reader indexes the full units of a page.
  void index(Live& live) {
    const int g = int(below(int64_t(live.model.groups.size())));
    KvTable& t = live.seq->table(g);
    if (t.payload.empty() || !t.index[0]) return;
    const int64_t p = below(int64_t(t.payload.size())), first = p * case_.page;
    int64_t end = std::min(first + case_.page, t.paged);
    for (const Plane& plane : planes_) {
      if (plane.component.spec.block == Block::kIndex)
        end = end / plane.component.spec.per * plane.component.spec.per;
    }
    const std::vector<Token>& tokens = live.model.groups[size_t(g)].tokens;
    each_item(t.index, g, Block::kIndex, first, end, [&](const Plane& plane, int h, char* at, int64_t i) {
      fill(at, plane.bytes, tokens[size_t(i)].seed, plane.component.index, plane.layer, h);
    });
    t.indexed[size_t(p)] = int32_t(std::max<int64_t>(end - first, 0));
  }

  Rng rng_;
  int64_t failed_ = 0;
  uint32_t seeds_ = 0;
};

TEST(KvStoreProperty, EverySequenceHoldsItsTokensAfterAnyOperations) {
  constexpr int kSeeds = 15, kSteps = 120;
  for (const Case& c : cases()) {
    int64_t failed = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      World world(c, seed);
      for (int step = 0; step < kSteps; ++step) {
        SCOPED_TRACE(format("layout '{}', seed {}, step {}", c.name, seed, step));
        world.step();
        world.verify();
        if (HasFailure()) return;
      }
      SCOPED_TRACE(format("layout '{}', seed {}, at the end", c.name, seed));
      failed += world.failures();
      world.clear();
      if (HasFailure()) return;
    }
    EXPECT_GT(failed, kSeeds) << "layout '" << c.name
                              << "': the limit and the injected failures were hardly met";
  }
}

}  // namespace
}  // namespace se
