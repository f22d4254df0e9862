// What a request costs: its life, played on counts with the arithmetic the driver uses on tables.
//
// No keeper: tokens are appended; a codec with a ring (tail T = residual R + grain G) leaves R .. T - 1 of
// them in it and the rest, in grains, in pages, whatever the cut. With keepers: the turn's prompt lies staged
// in plain pages of one layer; new tables of all groups, and a copy of the sequence's block if there is a
// ring, stand beside the old ones until all swap at once. Decode steps append; where a keeper is due, groups
// are rewritten one after another; then full rings close.
//
// Exact: resident bytes of a first turn, and its peak as long as no keeper is due in decode. Else an upper
// bound, since which leading pages survive whole depends on scores: a pick over paged tokens is priced as if
// it moved every survivor, and in a later turn, where groups and single tokens mix, as if it kept the most
// that a budget allows.
//
// Windowed groups (windows.h) hold what the next token sees, in whole pages. While a chunk runs they hold the
// old pages beside the new ones: exact where the plan fixes the cut, else the most that any cut can hold.
#include <algorithm>

#include "base/fmt.h"
#include "sparse/plan.h"
#include "sparse/windows.h"

namespace se {
namespace {

int64_t whole(int64_t tokens, int64_t grain) {
  return (std::max<int64_t>(0, tokens) + grain - 1) / grain * grain;
}

class Timeline {
 public:
  // held: (paged, tail) by group; excess: what earlier picks left beyond their budgets
  Timeline(const Plan& plan,
           const SeqView& request,
           std::span<const std::array<int64_t, 2>> held,
           int64_t excess)
      : plan_(plan), layout_(*plan.layout), view_(request), rows_(layout_.groups().size()) {
    SE_CHECK(held.empty() || held.size() == rows_.size(),
             "{} held counts for {} groups",
             held.size(),
             rows_.size());
    for (size_t g = 0; g < held.size(); ++g) {
      const int64_t all = held[g][0] + held[g][1];
      rows_[g] = {held[g][0], held[g][1], excess, window(g) > 0 ? request.logical - all : 0};
      SE_CHECK(rows_[g].base >= 0, "group {} holds {} of {} tokens", g, all, request.logical);
    }
    for (const KvGroup& g : layout_.groups()) windows_ = windows_ || g.window > 0;
    resident_.resize(plan.model.layers.size());
    view_.resident = resident_;
    view_.generated = 0;
    see(live());
  }

  void prompt(int64_t tokens) {
    view_.logical += tokens;
    view_.prompt = view_.logical;  // keepers see where the prompt ends, not where the turn began
    if (tokens <= 0) return;
    if (plan_.staging == Staging::kNone) return chunks(tokens);
    view_.decode = false, view_.last_chunk = view_.staged = true;
    const std::array<int64_t, 1> staged = {tokens};
    int64_t beside = plan_.staging_layout->bytes(staged, staged);
    if (layout_.tail() > 0 && view_.logical > tokens)
      beside += layout_.sequence_bytes();  // a copy of the ring
    std::vector<Row> next = rows_;
    for (size_t g = 0; g < rows_.size(); ++g)
      beside += window(g) > 0 ? stage_window(g, tokens, next[g]) : stage(int(g), tokens, next[g]);
    const int64_t before = live();
    rows_ = std::move(next);
    see(before + beside, live());
  }

  // `n` decode steps.
  void decode(int64_t n) {
    if (n <= 0) return;
    view_.decode = true, view_.last_chunk = view_.staged = false;
    if (plan_.keep.empty()) {  // all steps at once but the last, or the last that windows differ in
      const int64_t jump = windows_ ? std::max<int64_t>(0, n - 1 - 2 * layout_.page()) : n - 1;
      append(jump);
      view_.logical += jump, view_.generated += jump;
      n -= jump;
    }
    for (int64_t i = 0; i < n; ++i) {
      if (i + 1 == n) read();
      step();
    }
  }

  // any: what any step may leave, for lives whose picks may come earlier or later than here.
  Cost cost(bool any) {
    cost_.resident_bytes = any ? std::max(most_, live()) : live();
    double tokens = 0;
    for (size_t l = 0; l < resident_.size(); ++l)
      if (full(l)) tokens += double(rows_[size_t(layout_.group_of(int(l)))].all());
    cost_.resident_tokens = tokens / std::max(1, plan_.model.full_layers());
    return cost_;
  }

 private:
  struct Row {                                // one group
    int64_t paged = 0, tail = 0, excess = 0;  // excess: kept beyond the budget by the last pick
    int64_t base = 0;                         // windows: position of the first token
    int64_t all() const { return paged + tail; }
    int64_t next() const { return base + all(); }
  };

  int window(size_t group) const { return layout_.groups()[group].window; }
  bool full(size_t layer) const { return plan_.model.layers[layer].kind == LayerKind::kFull; }
  int64_t row_bytes(int group, int64_t paged, int64_t all) const {
    return layout_.pages(paged) * paged_page(group) +
           layout_.pages(all) * layout_.page_bytes(group, Block::kState);
  }
  int64_t paged_page(int group) const {
    return layout_.page_bytes(group, Block::kPayload) + layout_.page_bytes(group, Block::kIndex);
  }
  int64_t live() const {
    int64_t sum = layout_.sequence_bytes();
    for (size_t g = 0; g < rows_.size(); ++g) sum += row_bytes(int(g), rows_[g].paged, rows_[g].all());
    return sum;
  }
  void see(int64_t bytes) { see(bytes, bytes); }
  void see(int64_t bytes, int64_t after) {  // after: what is left of them when the copies are gone
    if (bytes <= cost_.peak_bytes) return;
    cost_.peak_bytes = bytes, cost_.transient_bytes = bytes - after;
  }

  // How many of `tokens` not yet encoded ones a chunk's write puts into pages.
  int64_t encoded(int64_t tokens) const {
    const CodecSpec& c = plan_.store_spec;
    if (c.tail == 0) return tokens;
    return tokens < c.residual ? 0 : (tokens - c.residual) / c.grain * c.grain;
  }
  void grow(Row& row, int64_t n) const {
    const int64_t close = encoded(row.tail + n);
    row.paged += close, row.tail += n - close;
  }
  // Whole pages before the window of the next token go.
  void drop(size_t group, Row& row) const {
    const int64_t page = layout_.page();
    const int64_t to =
        std::min(window_begin(row.next(), window(group), page), row.base + row.paged / page * page);
    if (to > row.base) row.paged -= to - row.base, row.base = to;
  }
  void drop_all() {
    for (size_t g = 0; g < rows_.size(); ++g) {
      if (window(g) > 0) drop(g, rows_[g]);
    }
  }
  void append(int64_t n) {
    for (Row& row : rows_) grow(row, n);
    drop_all();
    see(live());
  }
  // A prompt through all layers, chunk by chunk where the cut is the plan's and shows in the price.
  void chunks(int64_t n) {
    int64_t at = view_.logical - n;
    for (const int64_t chunk = windows_ && plan_.chunk > 0 ? plan_.chunk : n; n > 0;) {
      const int64_t m = chunk == plan_.chunk ? std::min(n, chunk - at % chunk) : n;
      step_of(m);
      at += m, n -= m;
    }
  }
  void step_of(int64_t n) {  // of a prompt, all layers
    int64_t beside = 0;      // old pages of windows that go when the step ends
    for (size_t g = 0; g < rows_.size(); ++g) {
      Row& row = rows_[g];
      const int64_t page = layout_.page(), old = layout_.pages(row.paged);
      const int64_t skips =
          window(g) > 0 && layout_.tail() == 0 ? window_skips(row.next(), n, window(g), page) : 0;
      grow(row, n);
      if (window(g) == 0) continue;
      int64_t most = layout_.pages(row.paged);
      if (skips > 0) most = old + layout_.pages(n - skips);
      if (plan_.chunk == 0 && layout_.tail() == 0)
        most = std::min(layout_.pages(row.paged), 2 * window_pages(window(g), page));
      drop(g, row);
      beside += (most - layout_.pages(row.paged)) * paged_page(int(g));
    }
    see(live() + beside, live());
  }

  struct Choice {
    bool due = false;
    int64_t left = 0, kept = 0;  // tokens the keepers ask for; what stays, the grain's excess included
  };
  // What stays of a group's row of `all` tokens. All keepers look at the row before any pick, less the last
  // pick's excess; each narrows the list of the one before.
  Choice choose(int group, const Row& row, int64_t all) {
    const std::vector<int>& layers = layout_.groups()[size_t(group)].layers;
    Choice c{false, all - row.excess, all};
    for (int l : layers) resident_[size_t(l)] = c.left;
    for (size_t k = 0; k < plan_.keep.size(); ++k) {
      if (!plan_.keep[k]->due(layers[0], view_)) continue;
      const int64_t wanted = plan_.keep[k]->resident(layers[0], view_);
      c.due = true;
      c.left = std::min(c.left, wanted);
      c.kept = std::min(c.kept, in_grains(row, wanted, plan_.keep_specs[k]));
    }
    return c;
  }
  // What keep_best makes of a budget: the tail and single tokens exactly, encoded ones in whole groups.
  int64_t in_grains(const Row& row, int64_t budget, const KeeperSpec& ends) const {
    const int64_t grain = plan_.store_spec.grain, room = std::max<int64_t>(0, budget - ends.sink);
    const int64_t recent = ends.recent < 0 ? room : std::min(ends.recent, room);
    const int64_t sink = whole(ends.sink, grain);
    if (row.paged == 0) return view_.decode ? row.tail : std::max(budget, ends.sink + recent + row.tail);
    if (view_.decode)
      return row.tail + std::max(whole(budget - row.tail, grain), sink + whole(recent - row.tail, grain));
    // Staged: groups and single tokens mix, and the ring's, between them, stay.
    return std::max(budget, sink + recent + row.tail) + grain - 1;
  }

  // The group's row after the prompt; returns the bytes of its new table that the old one does not share.
  int64_t stage(int group, int64_t tokens, Row& row) {
    const Choice c = choose(group, row, row.all() + tokens);
    const int64_t shared = c.due ? 0 : row.paged / layout_.page();
    if (c.due) row.excess = std::max<int64_t>(0, c.kept - c.left);
    row.paged = encoded(c.kept), row.tail = c.kept - row.paged;
    return row_bytes(group, row.paged, c.kept) - shared * paged_page(group);
  }

  // A windowed group's row after a staged prompt; as stage().
  int64_t stage_window(size_t group, int64_t tokens, Row& row) const {
    const int64_t skips = window_skips(row.next(), tokens, window(group), layout_.page());
    const int64_t shared = skips > 0 ? 0 : row.paged / layout_.page();
    if (skips > 0) row = {0, 0, 0, row.next() + skips};
    grow(row, tokens - skips);
    const int64_t bytes = row_bytes(int(group), row.paged, row.all()) - shared * paged_page(int(group));
    drop(group, row);
    return bytes;
  }

  void step() {
    ++view_.logical, ++view_.generated;
    for (Row& row : rows_) ++(layout_.tail() > 0 ? row.tail : row.paged);
    int64_t now = live();
    see(now);
    for (size_t g = 0; g < rows_.size(); ++g) {
      Row& row = rows_[g];
      if (window(g) > 0) continue;
      const Choice c = choose(int(g), row, row.all());
      if (!c.due) continue;
      row.excess = std::max<int64_t>(0, c.kept - c.left);
      if (c.kept == row.all()) continue;
      const int64_t before = row_bytes(int(g), row.paged, row.all());
      row.paged = c.kept - row.tail;
      const int64_t after = row_bytes(int(g), row.paged, c.kept);
      see(now + after, now - before + after);
      now += after - before;
    }
    for (Row& row : rows_) {
      if (layout_.tail() == 0 || row.tail < layout_.tail()) continue;
      row.paged += plan_.store_spec.grain, row.tail -= plan_.store_spec.grain;
    }
    see(live());
    drop_all();
    most_ = std::max(most_, live());
  }

  // What the next decode step reads of the rows as they are, at most.
  void read() {
    double tokens = 0;
    for (size_t l = 0; l < resident_.size(); ++l) {
      const Row& row = rows_[size_t(layout_.group_of(int(l)))];
      int64_t paged = row.paged;
      if (!full(l))  // of the window, the tokens before the one that sees it
        paged = std::clamp<int64_t>(plan_.model.layers[l].window - 1 - row.tail, 0, paged);
      if (plan_.read && plan_.read_spec.source[l] >= 0) {
        paged = std::min(paged, plan_.read->read_tokens(row.paged));
        if (paged < row.paged && plan_.read_spec.source[l] == int(l)) {
          cost_.read_bytes += item_bytes(plan_.read_spec.components, int(l), Block::kIndex, row.paged);
          if (plan_.read_spec.components.empty()) cost_.read_bytes += bounds_bytes(int(l), row.paged - paged);
        }
      }
      cost_.read_bytes += item_bytes(plan_.store_spec.components, int(l), Block::kPayload, paged);
      if (layout_.tail() > 0) cost_.read_bytes += ring_bytes(int(l)) * row.tail / layout_.tail();
      if (full(l)) tokens += double(paged + row.tail);
    }
    cost_.read_tokens = tokens / std::max(1, plan_.model.full_layers());
  }

  // Bytes of one item; 0: not in this layer, or of another block.
  int64_t one_item(const ComponentSpec& c, int layer, Block block) const {
    const bool here =
        c.layers.empty() || std::find(c.layers.begin(), c.layers.end(), layer) != c.layers.end();
    if (c.block != block || !here) return 0;
    int64_t elements = c.heads ? plan_.model.layers[size_t(layer)].kv_heads : 1;
    for (size_t i = 0; i < c.shape.size(); ++i) {
      elements *= i + 1 == c.shape.size() && !c.last.empty() ? c.last[size_t(layer)] : c.shape[i];
    }
    return bytes_of(c.dtype, elements);
  }
  int64_t item_bytes(const std::vector<ComponentSpec>& components,
                     int layer,
                     Block block,
                     int64_t tokens) const {
    int64_t sum = 0;
    for (const ComponentSpec& c : components) {
      if (c.per != kPerSequence) sum += one_item(c, layer, block) * ((tokens + c.per - 1) / c.per);
    }
    return sum;
  }
  // The codec's bounds (KeyBounds: a k_dim vector in each item of bounds_per tokens) of units that are
  // scored, not read.
  int64_t bounds_bytes(int layer, int64_t tokens) const {
    std::vector<ComponentSpec> bounds;
    for (const ComponentSpec& c : plan_.store_spec.components) {
      const int64_t last = c.last.empty() || c.shape.empty() ? 0 : c.last[size_t(layer)];
      const int64_t dim = c.shape.size() != 1 ? 0 : last > 0 ? last : c.shape[0];
      if (c.per == plan_.store_spec.bounds_per && dim == plan_.model.layers[size_t(layer)].k_dim)
        bounds.push_back(c);
    }
    return item_bytes(bounds, layer, Block::kPayload, tokens);
  }
  int64_t ring_bytes(int layer) const {
    int64_t sum = 0;
    for (const ComponentSpec& c : plan_.store_spec.components) {
      if (c.per == kPerSequence) sum += one_item(c, layer, Block::kPayload);
    }
    return sum;
  }

  const Plan& plan_;
  const KvLayout& layout_;
  SeqView view_;
  std::vector<Row> rows_;          // by group
  std::vector<int64_t> resident_;  // by layer, what view_ shows
  bool windows_ = false;           // there are windowed groups
  int64_t most_ = 0;               // bytes that a decode step left
  Cost cost_;
};

}  // namespace

Cost Plan::cost(const SeqView& request, std::span<const std::array<int64_t, 2>> held) const {
  const bool late_picks = !held.empty() && !keep.empty() && store_spec.grain > 1;
  const auto play = [&](int64_t excess) {
    Timeline timeline(*this, request, held, excess);
    timeline.prompt(request.prompt);
    timeline.decode(request.max_new - 1);  // the last token generated is never forwarded
    return timeline.cost(late_picks);
  };
  Cost c = play(0);
  if (!late_picks) return c;
  // An earlier pick may have left a part of a group too many, which delays the next one: the dearer life
  // counts.
  const Cost late = play(store_spec.grain - 1);
  c.resident_bytes = std::max(c.resident_bytes, late.resident_bytes);
  if (late.peak_bytes > c.peak_bytes)
    c.peak_bytes = late.peak_bytes, c.transient_bytes = late.transient_bytes;
  c.read_bytes = std::max(c.read_bytes, late.read_bytes);
  c.resident_tokens = std::max(c.resident_tokens, late.resident_tokens);
  c.read_tokens = std::max(c.read_tokens, late.read_tokens);
  return c;
}

}  // namespace se
