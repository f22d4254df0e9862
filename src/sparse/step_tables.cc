#include "sparse/step_tables.h"

#include <algorithm>

namespace se {
namespace {
template <typename T>
TensorView view_of(const std::vector<T>& v, DType dtype) {
  return TensorView::of(const_cast<T*>(v.data()), dtype, {int64_t(v.size())});
}
}  // namespace

StepTables::StepTables(
    const Plan& plan, const KvLayout& layout, const char* base, int rows, int64_t tokens, bool staged)
    : plan_(plan), layout_(layout), base_(base), rows_(rows), staged_(staged) {
  for (size_t g = 0; g < layout.groups().size(); ++g) {
    Group group;
    group.past = group.index = group.state = group.tail = group.fresh = Ragged(rows);
    group.past_first.assign(size_t(rows), 0), group.tail_first = group.past_first;
    group.slot.assign(size_t(tokens), -1);
    group.paged.assign(size_t(tokens), 0);
    groups_.push_back(std::move(group));
  }
  ring_item_.assign(size_t(rows), 0);
  offsets_.resize(size_t(layout.layers()) * 3 * size_t(rows));
  for (int l = 0; l < layout.layers(); ++l) {
    for (int b = 0; b < 3; ++b) {
      const int64_t offset = layout.slice_bytes(l, Block(b)) / kPageStep * layout.page();
      std::fill_n(offsets_.begin() + (l * 3 + b) * rows, rows, offset);
    }
  }
}

void StepTables::push_pages(int row, Ragged& to, std::span<const PageRef> pages, int64_t tokens) {
  to.begin(row);
  const int64_t page = layout_.page();
  for (int64_t t = 0; t < tokens; t += page) {
    to.push(row, pages[size_t(t / page)].id() * page, std::min(page, tokens - t));
  }
}

void StepTables::add_past(int row, const KvSequence& seq, int64_t next, int64_t limit) {
  for (int g = 0; g < int(groups_.size()); ++g) {
    const KvTable& table = seq.table(g);
    Group& group = groups_[size_t(g)];
    const int64_t paged = limit < 0 ? table.paged : limit;
    push_pages(row, group.past, table.payload, paged);
    if (layout_.page_bytes(g, Block::kIndex) > 0) push_pages(row, group.index, table.index, paged);
    if (layout_.page_bytes(g, Block::kState) > 0) push_pages(row, group.state, table.state, table.tokens());
    group.past_first[size_t(row)] = table.positions.empty() ? next : table.positions.front();
    group.tail_first[size_t(row)] = table.tail == 0 ? next : table.positions[size_t(table.paged)];
    group.tail.begin(row);
    const int64_t size = layout_.tail();
    for (int64_t i = 0; i < table.tail;) {  // at most two runs: the ring may wrap
      const int64_t place = (table.tail_first + i) % size, n = std::min(table.tail - i, size - place);
      group.tail.push(row, seq.item() * size + place, n);
      i += n;
    }
  }
  ring_item_[size_t(row)] = seq.item();
}

void StepTables::add_places(int row,
                            int g,
                            const KvTable& table,
                            int64_t paged,
                            int64_t tail,
                            int64_t first_token,
                            int64_t n,
                            int64_t block) {
  Group& group = groups_[size_t(g)];
  const int64_t page = layout_.page(), ring = layout_.tail();
  ring_item_[size_t(row)] = block;
  group.fresh.begin(row);
  if (ring > 0) {
    for (int64_t t = paged; t < table.paged;) {
      const int64_t in_page = t % page, m = std::min(table.paged - t, page - in_page);
      group.fresh.push(row, table.payload[size_t(t / page)].id() * page + in_page, m);
      t += m;
    }
  }
  // The tokens not yet encoded, in order: `tail` old ones, then the n new ones; the first `encoded` went to
  // pages.
  const int64_t encoded = table.paged - paged;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t j = tail + i;
    const size_t to = size_t(first_token + i);
    if (ring == 0) {
      const int64_t ordinal = paged + i;
      group.slot[to] = table.payload[size_t(ordinal / page)].id() * page + ordinal % page;
      group.paged[to] = 1;
    } else if (j >= encoded) {
      group.slot[to] = block * ring + (table.tail_first + j - encoded) % ring;
    }
  }
}

void StepTables::add_staged_places(const KvTable& table, int64_t ordinal, int64_t first_token, int64_t n) {
  Group& group = groups_[0];
  const int64_t page = layout_.page();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t o = ordinal + i;
    group.slot[size_t(first_token + i)] = table.payload[size_t(o / page)].id() * page + o % page;
    group.paged[size_t(first_token + i)] = 1;
  }
}

TensorView StepTables::plane(const Stage& owner, int layer, int component) const {
  const KvPlane p = layout_.plane(layer_of(layer), plan_.owner(owner), component);
  TensorView t;
  if (p.rank == 0) return t;
  t.data = const_cast<char*>(base_) + p.offset;
  t.dtype = p.dtype, t.rank = p.rank, t.shape = p.shape, t.stride = p.stride;
  return t;
}

TensorView StepTables::offsets(int layer, Block block) const {
  const int64_t* data = offsets_.data() + (layer_of(layer) * 3 + int(block)) * rows_;
  return TensorView::of(const_cast<int64_t*>(data), DType::kI64, {rows_});
}

KvIndex StepTables::Ragged::view(int unit, int page, const TensorView& offset) const {
  KvIndex i;
  i.runs = view_of(runs, DType::kI64), i.start = view_of(start, DType::kI64), i.offset = offset;
  i.counts = view_of(counts, DType::kI32), i.tokens = view_of(tokens, DType::kI32);
  i.unit = unit, i.page = page;
  i.cap = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  return i;
}

KvIndex StepTables::past(int layer, Block block) const {
  const Group& g = group(layer);
  const Ragged& r = block == Block::kPayload ? g.past : block == Block::kIndex ? g.index : g.state;
  KvIndex i = r.view(int(layout_.page()), int(layout_.page()), offsets(layer, block));
  if (windowed(layer)) i.first = view_of(g.past_first, DType::kI64);
  return i;
}

KvIndex StepTables::tail(int layer) const {
  static const std::vector<int64_t> kZeros(4096, 0);  // planes per sequence include the layer's offset
  SE_CHECK(rows_ <= int(kZeros.size()), "{} rows in a step", rows_);
  const int ring = int(layout_.tail());
  const Group& g = group(layer);
  KvIndex i =
      g.tail.view(ring, ring, TensorView::of(const_cast<int64_t*>(kZeros.data()), DType::kI64, {rows_}));
  if (windowed(layer)) i.first = view_of(g.tail_first, DType::kI64);
  return i;
}

KvIndex StepTables::fresh(int layer) const {
  return group(layer).fresh.view(int(layout_.page()), int(layout_.page()), offsets(layer, Block::kPayload));
}

TensorView StepTables::slots(int layer) const {
  const Group& g = group(layer);
  const int64_t offset = layout_.slice_bytes(layer_of(layer), Block::kPayload) / kPageStep * layout_.page();
  slots_ = g.slot;
  for (size_t t = 0; t < slots_.size(); ++t) {
    if (g.paged[t]) slots_[t] += offset;
  }
  return view_of(slots_, DType::kI64);
}

TensorView StepTables::ring_item() const { return view_of(ring_item_, DType::kI64); }

bool StepTables::any_past(int layer) const {
  const Group& g = group(layer);
  return !g.past.runs.empty() || !g.tail.runs.empty();
}
int64_t StepTables::past_tokens(int layer, int row) const { return group(layer).past.tokens[size_t(row)]; }
int64_t StepTables::tail_tokens(int layer, int row) const { return group(layer).tail.tokens[size_t(row)]; }

}  // namespace se
