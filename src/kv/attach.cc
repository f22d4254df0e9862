#include "base/fmt.h"
#include "kv/kv_store.h"

namespace se {
namespace {

Status same_payload(const KvLayout& a, const KvLayout& b) {
  if (a.page() != b.page() || a.groups().size() != b.groups().size())
    return invalid(format("pages of {} tokens in {} groups cannot serve as pages of {} in {}",
                          a.page(),
                          a.groups().size(),
                          b.page(),
                          b.groups().size()));
  if (a.tail() + b.tail() + a.sequence_bytes() + b.sequence_bytes() > 0)
    return invalid("sequences with a ring or state of their own share no pages under another plan");
  for (int g = 0; g < int(a.groups().size()); ++g) {
    const int64_t x = a.page_bytes(g, Block::kPayload), y = b.page_bytes(g, Block::kPayload);
    if (a.groups()[size_t(g)].layers != b.groups()[size_t(g)].layers || x != y)
      return invalid(format("group {}: {} payload bytes a page, wanted {} of the same layers", g, x, y));
    if (a.page_bytes(g, Block::kState) + b.page_bytes(g, Block::kState) > 0)
      return invalid(format("group {} has state, which is one sequence's alone", g));
  }
  return ok();
}

}  // namespace

Result<std::unique_ptr<KvSequence>> KvStore::attach(const KvSequence& from,
                                                    std::shared_ptr<const KvLayout> layout) {
  SE_TRY(same_payload(*from.layout_, *layout));
  auto seq = std::make_unique<KvSequence>();
  seq->layout_ = std::move(layout);
  seq->tables_ = from.tables_;
  for (int g = 0; g < int(seq->tables_.size()); ++g) {
    KvTable& table = seq->tables_[size_t(g)];
    const int64_t pages = int64_t(table.payload.size());
    table.index.clear();
    SE_TRY(take(table.index, pages, seq->layout_->page_bytes(g, Block::kIndex)));
    table.indexed.assign(size_t(pages), 0);
  }
  return seq;
}

}  // namespace se
