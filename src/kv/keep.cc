// What survives: KvStore::keep and stage_table. A row (old ordinals, ascending) becomes the new row; pages
// before the first change stay, the rest is gathered into fresh pages.
#include <algorithm>
#include <cstring>

#include "kv/kv_store.h"

namespace se {
namespace {

// Leading pages that stay as they are when `row` replaces the ordinals 0 .. tokens.
int64_t whole_pages(std::span<const int32_t> row, int64_t tokens, const KvLayout& layout) {
  int64_t same = 0;
  while (same < int64_t(row.size()) && row[size_t(same)] == same) ++same;
  return same == tokens ? layout.pages(tokens) : same / layout.page();
}

// Aborts unless the ordinals from `begin` (a multiple of the page) on come in whole items of every component.
void check_items(std::span<const int32_t> row,
                 int64_t begin,
                 int64_t tokens,
                 const std::vector<KvItems>& items) {
  int64_t per = 1;  // powers of two: the largest decides
  for (const KvItems& it : items) per = std::max<int64_t>(per, it.per);
  if (per == 1) return;
  const int64_t n = int64_t(row.size());
  for (int64_t i = begin; i < n; i += per) {
    const int64_t first = row[size_t(i)], want = std::min(per, tokens - first), have = std::min(per, n - i);
    SE_CHECK(first % per == 0 && have == want && row[size_t(i + have - 1)] == first + have - 1,
             "kept ordinals {} .. {} are no whole group of {} tokens",
             first,
             row[size_t(i + have - 1)],
             per);
  }
}

// Copies the tokens `row` (at most a page of old ordinals) to the front of the page at `to`.
void copy_tokens(std::span<const int32_t> row,
                 const std::vector<PageRef>& from,
                 char* to,
                 int64_t page,
                 const std::vector<KvItems>& items) {
  const int64_t n = int64_t(row.size());
  for (int64_t begin = 0, end = 0; begin < n; begin = end) {
    const int64_t first = row[size_t(begin)], first_page = first / page;
    for (end = begin + 1;
         end < n && row[size_t(end)] == first + (end - begin) && row[size_t(end)] / page == first_page;)
      ++end;
    const char* source = from[size_t(first_page)].data();
    for (const KvItems& it : items) {
      const int64_t count = (end - begin + it.per - 1) / it.per;
      for (int64_t h = 0; h < it.heads; ++h) {
        const int64_t head = it.offset + h * it.head_bytes;
        std::memcpy(to + head + begin / it.per * it.item_bytes,
                    source + head + first % page / it.per * it.item_bytes,
                    size_t(count * it.item_bytes));
      }
    }
  }
}

void copy_pages(std::span<const int32_t> row,
                int64_t whole,
                const std::vector<PageRef>& from,
                const std::vector<PageRef>& to,
                int64_t page,
                const std::vector<KvItems>& items) {
  for (size_t p = size_t(whole); p < to.size() && !items.empty(); ++p) {
    const size_t begin = p * size_t(page);
    copy_tokens(
        row.subspan(begin, std::min(size_t(page), row.size() - begin)), from, to[p].data(), page, items);
  }
}

std::vector<int32_t> with_tail(std::span<const int32_t> ordinals, const KvTable& table) {
  std::vector<int32_t> row(ordinals.begin(), ordinals.end());
  for (int64_t i = table.paged; i < table.tokens(); ++i) row.push_back(int32_t(i));
  return row;
}

void check_list(const KvSequence& seq, const GroupKeep& list) {
  SE_CHECK(list.group >= 0 && list.group < int(seq.layout().groups().size()),
           "group {} of {}",
           list.group,
           seq.layout().groups().size());
  int64_t last = -1;
  for (int32_t o : list.ordinals) {
    SE_CHECK(o > last && o < seq.table(list.group).paged,
             "ordinal {} after {} of {} paged tokens",
             o,
             last,
             seq.table(list.group).paged);
    last = o;
  }
}

int64_t unshared_bytes(const std::vector<PageRef>& pages, int64_t from) {
  int64_t sum = 0;
  for (size_t p = size_t(from); p < pages.size(); ++p) sum += pages[p].shared() ? 0 : pages[p].bytes();
  return sum;
}

}  // namespace

Result<KvTable> KvStore::gather(const KvSequence& seq, const GroupKeep& list, bool carry, bool share_state) {
  const KvLayout& layout = seq.layout();
  const KvTable& old = seq.table(list.group);
  const auto bytes = [&](Block block) { return layout.page_bytes(list.group, block); };
  const auto& payload = layout.items(list.group, Block::kPayload);
  const auto& state = layout.items(list.group, Block::kState);
  const int64_t whole = whole_pages(list.ordinals, old.paged, layout);
  const int64_t kept = int64_t(list.ordinals.size());
  check_items(list.ordinals, whole * layout.page(), old.paged, payload);

  KvTable t;
  t.payload.assign(old.payload.begin(), old.payload.begin() + whole);
  t.index.assign(old.index.begin(), old.index.begin() + whole);
  t.indexed.assign(old.indexed.begin(), old.indexed.begin() + whole);
  SE_TRY(take(t.payload, layout.pages(kept) - whole, bytes(Block::kPayload)));
  SE_TRY(take(t.index, layout.pages(kept) - whole, bytes(Block::kIndex)));
  t.indexed.resize(t.payload.size(), 0);
  copy_pages(list.ordinals, whole, old.payload, t.payload, layout.page(), payload);

  const std::vector<int32_t> row = carry ? with_tail(list.ordinals, old)
                                         : std::vector<int32_t>(list.ordinals.begin(), list.ordinals.end());
  if (!state.empty()) {
    const int64_t stays = share_state ? whole_pages(row, old.tokens(), layout) : 0;
    check_items(row, stays * layout.page(), old.tokens(), state);
    t.state.assign(old.state.begin(), old.state.begin() + stays);
    SE_TRY(take(t.state, layout.pages(int64_t(row.size())) - stays, bytes(Block::kState), /*zero=*/true));
    copy_pages(row, stays, old.state, t.state, layout.page(), state);
  }

  t.positions.reserve(row.size());
  for (int32_t o : row) t.positions.push_back(old.positions[size_t(o)]);
  t.paged = kept;
  t.tail = carry ? old.tail : 0;
  t.tail_first = carry ? old.tail_first : 0;
  return t;
}

// Walks the groups as keep and close_tail will, counting takes and what the arena has free.
Status KvStore::can_keep(const KvSequence& seq,
                         std::span<const GroupKeep> lists,
                         std::span<const int64_t> closing) const {
  const KvLayout& layout = seq.layout();
  int64_t free = arena_->free_bytes(), takes = 0;
  for (size_t i = 0; i < lists.size(); ++i) {
    const GroupKeep& list = lists[i];
    check_list(seq, list);
    for (size_t j = 0; j < i; ++j)
      SE_CHECK(lists[j].group != list.group, "group {} is listed twice", list.group);
    const KvTable& old = seq.table(list.group);
    const auto bytes = [&](Block block) { return layout.page_bytes(list.group, block); };
    const int64_t whole = whole_pages(list.ordinals, old.paged, layout);
    const int64_t fresh = layout.pages(int64_t(list.ordinals.size())) - whole;
    int64_t need = fresh * (bytes(Block::kPayload) + bytes(Block::kIndex));
    int64_t back = unshared_bytes(old.payload, whole) + unshared_bytes(old.index, whole);
    takes += fresh * ((bytes(Block::kPayload) > 0) + (bytes(Block::kIndex) > 0));
    if (bytes(Block::kState) > 0) {
      const std::vector<int32_t> row = with_tail(list.ordinals, old);
      const int64_t stays = whole_pages(row, old.tokens(), layout);
      const int64_t more = layout.pages(int64_t(row.size())) - stays;
      need += more * bytes(Block::kState);
      back += unshared_bytes(old.state, stays);
      takes += more;
    }
    if (need > free) {
      return exhausted(
          format("keep: group {} needs {} bytes of fresh pages for its {} survivors, {} of {} are free",
                 list.group,
                 need,
                 list.ordinals.size(),
                 free,
                 arena_->limit_bytes()));
    }
    free += back - need;
  }
  for (size_t g = 0; g < closing.size(); ++g) {
    if (closing[g] == 0) continue;
    const KvTable& old = seq.table(int(g));
    const auto list =
        std::find_if(lists.begin(), lists.end(), [&](const GroupKeep& keep) { return keep.group == int(g); });
    const int64_t paged = list == lists.end() ? old.paged : int64_t(list->ordinals.size());
    const int64_t fresh = layout.pages(paged + closing[g]) - layout.pages(paged);
    int64_t need = 0;
    const bool as_it_was = list == lists.end() || paged == old.paged;
    for (const auto& [block, pages] :
         {std::pair(Block::kPayload, &old.payload), {Block::kIndex, &old.index}}) {
      if (layout.page_bytes(int(g), block) == 0) continue;
      // A partial last page that others share is copied before it is written.
      const int64_t copies = as_it_was && paged % layout.page() != 0 && pages->back().shared();
      need += (fresh + copies) * layout.page_bytes(int(g), block);
      takes += fresh + copies;
    }
    if (need > free) {
      return exhausted(format("group {} needs {} bytes of pages to close its ring, {} of {} are free",
                              g,
                              need,
                              free,
                              arena_->limit_bytes()));
    }
    free -= need;
  }
  return arena_->announce(takes).in("keep");
}

Status KvStore::keep(KvSequence& seq, std::span<const GroupKeep> lists) {
  SE_TRY(can_keep(seq, lists));
  for (const GroupKeep& list : lists) {
    auto table = gather(seq, list, /*carry=*/true, /*share_state=*/true);
    SE_CHECK(table.ok(), "keep was promised its pages: {}", table.status().message());
    seq.table(list.group) = table.take();
  }
#ifdef SE_DEBUG
  check(seq);
#endif
  return ok();
}

Result<KvTable> KvStore::stage_table(const KvSequence& seq,
                                     const GroupKeep& survivors,
                                     std::span<const int32_t> fresh,
                                     std::span<const int32_t> tail) {
  check_list(seq, survivors);
  const KvLayout& layout = seq.layout();
  SE_CHECK(int64_t(tail.size()) <= layout.tail(), "{} tokens in a ring of {}", tail.size(), layout.tail());
  std::vector<int32_t> added(fresh.begin(), fresh.end());
  added.insert(added.end(), tail.begin(), tail.end());
  const KvTable& old = seq.table(survivors.group);
  const auto first = old.positions.begin() + old.paged;
  const bool carry = old.tail > 0 && int64_t(added.size()) >= old.tail &&
                     std::equal(first, old.positions.end(), added.begin());

  SE_ASSIGN(KvTable t, gather(seq, survivors, carry, /*share_state=*/false));
  t.positions.resize(size_t(t.paged));  // those carried come again in `added`
  t.tail = t.tail_first = 0;
  const int64_t paged = t.paged + int64_t(fresh.size());
  SE_ASSIGN(Growth growth, grow(layout, survivors.group, t, paged, t.paged + int64_t(added.size())));
  apply(t, std::move(growth));
  t.positions.insert(t.positions.end(), added.begin(), added.end());
  t.paged = paged;
  t.tail = int64_t(tail.size());
  return t;
}

}  // namespace se
