#include "kv/kv_store.h"

#include <algorithm>
#include <cstring>

namespace se {
namespace {

Result<PageRef> copy_page(PageArena& arena, const PageRef& from) {
  SE_ASSIGN(PageRef to, arena.take(from.bytes()));
  std::memcpy(to.data(), from.data(), size_t(from.bytes()));
  return to;
}

}  // namespace

Result<std::unique_ptr<KvStore>> KvStore::create(int64_t limit_bytes) {
  auto store = std::make_unique<KvStore>();
  SE_ASSIGN(store->arena_, PageArena::create(limit_bytes));
  return store;
}

Status KvStore::take(std::vector<PageRef>& into, int64_t n, int64_t bytes, bool zero) {
  into.reserve(into.size() + size_t(std::max<int64_t>(n, 0)));
  for (int64_t i = 0; i < n; ++i) {
    if (bytes == 0) {
      into.emplace_back();
      continue;
    }
    SE_ASSIGN(PageRef page, arena_->take(bytes));
    if (zero) std::memset(page.data(), 0, size_t(bytes));
    into.push_back(std::move(page));
  }
  return ok();
}

Result<PageRef> KvStore::take_block(const KvLayout& layout, const PageRef& from) {
  if (layout.sequence_bytes() == 0) return PageRef();
  SE_ASSIGN(PageRef block, arena_->take(layout.sequence_bytes()));
  if (from) {
    std::memcpy(block.data(), from.data(), size_t(block.bytes()));
  } else {
    std::memset(block.data(), 0, size_t(block.bytes()));
  }
  return block;
}

Result<std::unique_ptr<KvSequence>> KvStore::create_sequence(std::shared_ptr<const KvLayout> layout) {
  auto seq = std::make_unique<KvSequence>();
  SE_ASSIGN(seq->sequence_, take_block(*layout, {}));
  seq->tables_.resize(layout->groups().size());
  seq->layout_ = std::move(layout);
  return seq;
}

Result<std::unique_ptr<KvSequence>> KvStore::fork(const KvSequence& from) {
  auto seq = std::make_unique<KvSequence>();
  seq->layout_ = from.layout_;
  SE_ASSIGN(seq->sequence_, take_block(*from.layout_, from.sequence_));
  seq->tables_ = from.tables_;
  for (KvTable& table : seq->tables_) {
    for (PageRef& page : table.state) {
      SE_ASSIGN(page, copy_page(*arena_, page));
    }
  }
  return seq;
}

Result<PageRef> KvStore::clone_block(const KvSequence& seq) {
  return take_block(*seq.layout_, seq.sequence_);
}

Result<KvStore::Growth> KvStore::grow(
    const KvLayout& layout, int group, const KvTable& table, int64_t paged, int64_t all) {
  Growth g;
  if (paged > table.paged && table.paged % layout.page() != 0) {
    if (table.payload.back().shared()) {
      SE_ASSIGN(g.payload_copy, copy_page(*arena_, table.payload.back()));
    }
    if (table.index.back().shared()) {
      SE_ASSIGN(g.index_copy, copy_page(*arena_, table.index.back()));
    }
  }
  const int64_t more = layout.pages(paged) - int64_t(table.payload.size());
  SE_TRY(take(g.payload, more, layout.page_bytes(group, Block::kPayload)));
  SE_TRY(take(g.index, more, layout.page_bytes(group, Block::kIndex)));
  if (const int64_t bytes = layout.page_bytes(group, Block::kState)) {
    SE_TRY(take(g.state, layout.pages(all) - int64_t(table.state.size()), bytes, /*zero=*/true));
  }
  return g;
}

void KvStore::apply(KvTable& table, Growth g) {
  if (g.payload_copy) table.payload.back() = std::move(g.payload_copy);
  if (g.index_copy) table.index.back() = std::move(g.index_copy);
  const auto move_in = [](std::vector<PageRef>& pages, std::vector<PageRef>& more) {
    pages.insert(pages.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  move_in(table.payload, g.payload);
  move_in(table.index, g.index);
  move_in(table.state, g.state);
  table.indexed.resize(table.payload.size(), 0);
}

Status KvStore::append(KvSequence& seq, std::span<const int32_t> positions, std::span<const int> groups) {
  std::vector<int> list(groups.begin(), groups.end());
  if (list.empty()) {
    for (size_t g = 0; g < seq.tables_.size(); ++g) list.push_back(int(g));
  }
  const int64_t n = int64_t(positions.size());
  std::vector<Growth> growth;
  for (size_t i = 0; i < list.size(); ++i) {
    SE_CHECK(std::find(list.begin(), list.begin() + int64_t(i), list[i]) == list.begin() + int64_t(i),
             "group {} is listed twice",
             list[i]);
    const KvTable& table = seq.table(list[i]);
    SE_CHECK(table.tail == 0,
             "paged tokens would pass {} older ones in the ring of group {}: close them first",
             table.tail,
             list[i]);
    SE_ASSIGN(Growth g, grow(seq.layout(), list[i], table, table.paged + n, table.tokens() + n));
    growth.push_back(std::move(g));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    KvTable& table = seq.table(list[i]);
    apply(table, std::move(growth[i]));
    table.positions.insert(table.positions.end(), positions.begin(), positions.end());
    table.paged += n;
  }
#ifdef SE_DEBUG
  check(seq);
#endif
  return ok();
}

int64_t KvStore::slot(const KvSequence& seq, int group, int64_t ordinal) const {
  const KvTable& table = seq.table(group);
  const int64_t page = seq.layout().page();
  SE_CHECK(ordinal >= 0 && ordinal < table.paged, "ordinal {} of {} paged tokens", ordinal, table.paged);
  return table.payload[size_t(ordinal / page)].id() * page + ordinal % page;
}

Status KvStore::append_tail(KvSequence& seq, int group, std::span<const int32_t> positions) {
  KvTable& table = seq.table(group);
  const int64_t n = int64_t(positions.size());
  SE_CHECK(table.tail + n <= seq.layout().tail(),
           "{} + {} tokens in a ring of {}",
           table.tail,
           n,
           seq.layout().tail());
  SE_ASSIGN(Growth g, grow(seq.layout(), group, table, table.paged, table.tokens() + n));
  apply(table, std::move(g));
  table.positions.insert(table.positions.end(), positions.begin(), positions.end());
  table.tail += n;
#ifdef SE_DEBUG
  check(seq);
#endif
  return ok();
}

Status KvStore::close_tail(KvSequence& seq, int group, int64_t n) {
  KvTable& table = seq.table(group);
  SE_CHECK(n >= 0 && n <= table.tail, "{} of {} tail tokens", n, table.tail);
  if (n == 0) return ok();
  SE_ASSIGN(Growth g, grow(seq.layout(), group, table, table.paged + n, table.tokens()));
  apply(table, std::move(g));
  table.paged += n;
  table.tail -= n;
  table.tail_first = (table.tail_first + n) % seq.layout().tail();
#ifdef SE_DEBUG
  check(seq);
#endif
  return ok();
}

int64_t KvStore::ring_slot(const KvSequence& seq, int group, int64_t i) const {
  const KvTable& table = seq.table(group);
  const int64_t ring = seq.layout().tail();
  SE_CHECK(i >= 0 && i < ring, "tail token {} in a ring of {}", i, ring);
  return seq.item() * ring + (table.tail_first + i) % ring;
}

void KvStore::install(KvSequence& seq, std::vector<KvTable> tables, PageRef sequence_block) {
  SE_CHECK(tables.size() == seq.tables_.size(), "{} tables for {} groups", tables.size(), seq.tables_.size());
  if (sequence_block) {
    SE_CHECK(sequence_block.bytes() == seq.layout().sequence_bytes(),
             "a block of {} bytes, wanted {}",
             sequence_block.bytes(),
             seq.layout().sequence_bytes());
    seq.sequence_ = std::move(sequence_block);
  }
  seq.tables_ = std::move(tables);
#ifdef SE_DEBUG
  check(seq);
#endif
}

int64_t KvStore::bytes(const KvSequence& seq) const {
  int64_t sum = seq.sequence_.bytes();
  for (const KvTable& t : seq.tables_) {
    for (const auto* pages : {&t.payload, &t.index, &t.state}) {
      for (const PageRef& page : *pages) sum += page.bytes();
    }
  }
  return sum;
}

void KvStore::check(const KvSequence& seq) const {
  const KvLayout& layout = seq.layout();
  SE_CHECK(seq.sequence_.bytes() == layout.sequence_bytes() && !seq.sequence_.shared(),
           "the sequence block has {} bytes, wanted {} and private",
           seq.sequence_.bytes(),
           layout.sequence_bytes());
  for (size_t g = 0; g < seq.tables_.size(); ++g) {
    const KvTable& t = seq.tables_[g];
    const auto bytes = [&](Block block) { return layout.page_bytes(int(g), block); };
    const size_t pages = size_t(layout.pages(t.paged));
    SE_CHECK(t.payload.size() == pages && t.index.size() == pages && t.indexed.size() == pages,
             "group {}: {} payload pages, {} index pages, {} indexed counts for {} paged tokens",
             g,
             t.payload.size(),
             t.index.size(),
             t.indexed.size(),
             t.paged);
    SE_CHECK(t.state.size() == size_t(bytes(Block::kState) ? layout.pages(t.tokens()) : 0),
             "group {}: {} state pages for {} tokens",
             g,
             t.state.size(),
             t.tokens());
    SE_CHECK(int64_t(t.positions.size()) == t.tokens(),
             "group {}: {} positions for {} tokens",
             g,
             t.positions.size(),
             t.tokens());
    SE_CHECK(t.tail >= 0 && t.tail <= layout.tail() && t.tail_first >= 0 &&
                 t.tail_first < std::max<int64_t>(layout.tail(), 1),
             "group {}: {} tail tokens from item {} of {}",
             g,
             t.tail,
             t.tail_first,
             layout.tail());
    for (size_t p = 0; p < pages; ++p) {
      const int64_t tokens = std::min(layout.page(), t.paged - int64_t(p) * layout.page());
      SE_CHECK(t.payload[p].bytes() == bytes(Block::kPayload) && t.index[p].bytes() == bytes(Block::kIndex),
               "group {}, page {}: {} payload and {} index bytes",
               g,
               p,
               t.payload[p].bytes(),
               t.index[p].bytes());
      SE_CHECK(t.indexed[p] >= 0 && t.indexed[p] <= tokens,
               "group {}, page {}: {} of {} tokens indexed",
               g,
               p,
               t.indexed[p],
               tokens);
    }
    for (const PageRef& page : t.state) {
      SE_CHECK(page.bytes() == bytes(Block::kState) && !page.shared(),
               "group {}: a state page of {} bytes{}",
               g,
               page.bytes(),
               page.shared() ? ", shared" : "");
    }
  }
}

}  // namespace se
