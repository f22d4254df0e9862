// Sequences in files. Of a page only the items of tokens that are there are written, so that equal sequences
// give equal files and nothing of another sequence gets into one.
#include <algorithm>
#include <cstring>

#include "base/checked_file.h"
#include "base/fmt.h"
#include "kv/kv_store.h"

namespace se {
namespace {

// fn(byte offset in the page, bytes) for the items of the first `tokens` tokens of a page.
template <typename F>
void for_items(const std::vector<KvItems>& items, int64_t tokens, const F& fn) {
  for (const KvItems& c : items) {
    const int64_t bytes = (tokens + c.per - 1) / c.per * c.item_bytes;
    for (int64_t h = 0; h < c.heads; ++h) fn(c.offset + h * c.head_bytes, bytes);
  }
}

struct Part {  // pages of one block of a table and how many tokens of each are valid
  Block block;
  const std::vector<PageRef>* pages;
  const char* what;
};

int64_t tokens_of(const KvLayout& layout, const KvTable& t, Block block, size_t page) {
  if (block == Block::kIndex) return t.indexed[page];
  const int64_t all = block == Block::kState ? t.tokens() : t.paged;
  return std::min(layout.page(), all - int64_t(page) * layout.page());
}

std::array<Part, 3> parts(const KvTable& t) {
  return {Part{Block::kPayload, &t.payload, "pages"},
          Part{Block::kIndex, &t.index, "index pages"},
          Part{Block::kState, &t.state, "state pages"}};
}

Status check_table(const KvLayout& layout, const KvTable& t, int64_t logical, const CheckedReader& from) {
  for (size_t i = 0; i < t.positions.size(); ++i) {
    if (t.positions[i] < 0 || t.positions[i] >= logical || (i > 0 && t.positions[i] <= t.positions[i - 1]))
      return from.bad(
          format("token {} has position {}, wanted ascending ones below {}", i, t.positions[i], logical));
  }
  for (size_t p = 0; p < t.indexed.size(); ++p) {
    const int64_t most = std::min(layout.page(), t.paged - int64_t(p) * layout.page());
    if (t.indexed[p] < 0 || t.indexed[p] > most)
      return from.bad(format("page {}: {} tokens indexed, wanted 0 to {}", p, t.indexed[p], most));
  }
  return ok();
}

}  // namespace

void KvStore::save(const KvSequence& seq, CheckedWriter& to) const {
  const KvLayout& layout = *seq.layout_;
  if (seq.sequence_) to.write(seq.sequence_.data(), seq.sequence_.bytes());
  for (int g = 0; g < int(seq.tables_.size()); ++g) {
    const KvTable& t = seq.tables_[size_t(g)];
    to.number(t.paged), to.number(t.tail), to.number(t.tail_first);
    to.write(t.positions.data(), t.tokens() * int64_t(sizeof(int32_t)));
    to.write(t.indexed.data(), int64_t(t.indexed.size() * sizeof(int32_t)));
    for (const Part& part : parts(t)) {
      for (size_t p = 0; p < part.pages->size(); ++p) {
        const PageRef& page = (*part.pages)[p];
        if (!page) continue;
        for_items(layout.items(g, part.block),
                  tokens_of(layout, t, part.block, p),
                  [&](int64_t at, int64_t n) { to.write(page.data() + at, n); });
      }
    }
  }
}

Result<std::unique_ptr<KvSequence>> KvStore::load(CheckedReader& from,
                                                  std::shared_ptr<const KvLayout> shared_layout,
                                                  int64_t logical) {
  SE_ASSIGN(auto seq, create_sequence(std::move(shared_layout)));
  const KvLayout& layout = *seq->layout_;
  if (seq->sequence_)
    SE_TRY(from.read(seq->sequence_.data(), seq->sequence_.bytes(), "state of the sequence"));
  for (int g = 0; g < int(seq->tables_.size()); ++g) {
    KvTable& t = seq->tables_[size_t(g)];
    SE_ASSIGN(t.paged, from.number(0, std::min(logical, from.left() / 4), "tokens in pages"));
    SE_ASSIGN(t.tail, from.number(0, std::min(layout.tail(), logical - t.paged), "tokens in the ring"));
    SE_ASSIGN(t.tail_first,
              from.number(0, std::max<int64_t>(layout.tail() - 1, 0), "first item of the ring"));
    t.positions.resize(size_t(t.tokens()));
    SE_TRY(from.read(t.positions.data(), t.tokens() * int64_t(sizeof(int32_t)), "positions"));
    const int64_t pages = layout.pages(t.paged);
    t.indexed.resize(size_t(pages));
    SE_TRY(from.read(t.indexed.data(), pages * int64_t(sizeof(int32_t)), "indexed tokens"));
    SE_TRY(check_table(layout, t, logical, from));
    SE_TRY(take(t.payload, pages, layout.page_bytes(g, Block::kPayload)));
    SE_TRY(take(t.index, pages, layout.page_bytes(g, Block::kIndex)));
    if (const int64_t bytes = layout.page_bytes(g, Block::kState))
      SE_TRY(take(t.state, layout.pages(t.tokens()), bytes, /*zero=*/true));
    for (const Part& part : parts(t)) {
      for (size_t p = 0; p < part.pages->size(); ++p) {
        const PageRef& page = (*part.pages)[p];
        if (!page) continue;
        Status s = ok();
        for_items(
            layout.items(g, part.block), tokens_of(layout, t, part.block, p), [&](int64_t at, int64_t n) {
              if (s.ok()) s = from.read(page.data() + at, n, part.what);
            });
        SE_TRY(s);
      }
    }
    if (g > 0 && layout.groups()[size_t(g)].domain == layout.groups()[size_t(g) - 1].domain &&
        t.positions != seq->tables_[size_t(g) - 1].positions)
      return from.bad(format("groups {} and {} hold the same tokens, but their positions differ", g - 1, g));
  }
  return seq;
}

}  // namespace se
