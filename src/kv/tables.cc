// Edits of tables that move no bytes: back to a mark, pages before a window.
#include <algorithm>
#include <utility>

#include "kv/kv_store.h"

namespace se {

std::vector<KvMark> KvStore::mark(const KvSequence& seq) const {
  std::vector<KvMark> marks;
  for (const KvTable& t : seq.tables_) marks.push_back({t.paged, t.tail, t.tail_first});
  return marks;
}

void KvStore::rollback(KvSequence& seq, std::span<const KvMark> marks) {
  SE_CHECK(marks.size() == seq.tables_.size(), "{} marks for {} groups", marks.size(), seq.tables_.size());
  for (size_t g = 0; g < marks.size(); ++g) {
    KvTable& t = seq.tables_[g];
    const KvMark& m = marks[g];
    SE_CHECK(m.paged <= t.paged && m.paged + m.tail <= t.tokens(), "rollback only goes back");
    t.paged = m.paged, t.tail = m.tail, t.tail_first = m.tail_first;
    const size_t pages = size_t(seq.layout_->pages(t.paged));
    t.payload.resize(pages);
    t.indexed.resize(pages);
    if (t.index.size() > pages) t.index.resize(pages);
    const size_t state = size_t(seq.layout_->pages(t.tokens()));
    if (t.state.size() > state) t.state.resize(state);
    t.positions.resize(size_t(t.tokens()));
  }
}

void KvStore::drop_before(KvSequence& seq, int group, int64_t position) {
  KvTable& t = seq.table(group);
  const int64_t page = seq.layout().page();
  int64_t pages = 0;
  while ((pages + 1) * page <= t.paged && t.positions[size_t((pages + 1) * page - 1)] < position) ++pages;
  if (pages == 0) return;
  const auto drop = [&](auto& list, int64_t n) {
    list.erase(list.begin(), list.begin() + std::min(n, int64_t(list.size())));
  };
  drop(t.payload, pages), drop(t.index, pages), drop(t.indexed, pages), drop(t.state, pages);
  drop(t.positions, pages * page);
  t.paged -= pages * page;
#ifdef SE_DEBUG
  check(seq);
#endif
}

KvTable KvStore::take_table(KvSequence& seq, int group) { return std::exchange(seq.table(group), KvTable()); }

}  // namespace se
