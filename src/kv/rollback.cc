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

}  // namespace se
