// kv/kv_store.h -- what sequences own: page tables by group, the codec's ring, state; and every mutation of
// it.
//
// Goals: all or nothing mutations, exact bytes, cheap forks. Non-goals: methods, models, scheduling.
// Rows are dense: all pages of a table but the last are full, so a token's ordinal is its index in the row,
// and a group's bytes follow from its token count (docs/adr/0003-dense-rows.md). Paged tokens come first,
// then the tail (the codec's ring), then what a step adds. Thread rule: one engine thread owns the store and
// its sequences.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/layout.h"
#include "kv/page_pool.h"

namespace se {

class CheckedWriter;
class CheckedReader;

struct KvTable {  // one group of one sequence
  std::vector<PageRef> payload;
  std::vector<PageRef> index;      // parallel to payload; empty refs where the layout has no index
  std::vector<PageRef> state;      // by page number over all tokens (paged, tail); new: zero; none: no state
  std::vector<int32_t> indexed;    // parallel to payload: tokens of the page whose index is valid
  std::vector<int32_t> positions;  // logical position of every token, tail included
  int64_t paged = 0;               // tokens in pages
  int64_t tail = 0;                // tokens in the ring ...
  int64_t tail_first = 0;          // ... the oldest of which lies in this item of it
  int64_t tokens() const { return paged + tail; }
};

class KvSequence {
 public:
  KvSequence() = default;
  KvSequence(const KvSequence&) = delete;  // KvStore::fork
  KvSequence& operator=(const KvSequence&) = delete;
  const KvLayout& layout() const { return *layout_; }
  const KvTable& table(int group) const { return tables_[size_t(group)]; }
  KvTable& table(int group) { return tables_[size_t(group)]; }
  int64_t resident(int layer) const { return tables_[size_t(layout_->group_of(layer))].tokens(); }
  int64_t item() const { return sequence_ ? sequence_.id() : 0; }  // of the kPerSequence block
  const PageRef& sequence_block() const { return sequence_; }

 private:
  friend class KvStore;
  std::shared_ptr<const KvLayout> layout_;  // shared: one per plan, outlived by none of its sequences
  std::vector<KvTable> tables_;
  PageRef sequence_;
};

// Counts of one group, to go back to if a step cannot be placed whole.
struct KvMark {
  int64_t paged = 0, tail = 0, tail_first = 0;
};

// What survives in one group: ordinals of paged tokens, ascending. The tail always stays.
struct GroupKeep {
  int group = 0;
  std::span<const int32_t> ordinals;
};

class KvStore {
 public:
  static Result<std::unique_ptr<KvStore>> create(int64_t limit_bytes);
  PageArena& arena() { return *arena_; }
  const PageArena& arena() const { return *arena_; }

  // An empty sequence; takes its kPerSequence block (zeroed), no page. Sequences and tables must go before
  // the store.
  Result<std::unique_ptr<KvSequence>> create_sequence(std::shared_ptr<const KvLayout> layout);
  // A copy that shares payload and index pages by count and clones state pages and the kPerSequence block. A
  // partial last page is shared too, until one of the two appends.
  Result<std::unique_ptr<KvSequence>> fork(const KvSequence& from);

  // A sequence of another layout that shares the payload pages of `from`, by count; its index is still to be
  // made. kInvalid unless both layouts have the same page, groups and payload bytes, and neither a tail, nor
  // state, nor a kPerSequence block.
  Result<std::unique_ptr<KvSequence>> attach(const KvSequence& from, std::shared_ptr<const KvLayout> layout);

  // A sequence as bytes, and back. save() writes what the tokens there need and nothing else; load() wants
  // the same layout (the caller's fingerprints say so) and no position at or over `logical`. Errors: kInvalid
  // for bytes that are no such sequence, kExhausted; finish() of the reader tells whether they are undamaged.
  void save(const KvSequence& seq, CheckedWriter& to) const;
  Result<std::unique_ptr<KvSequence>> load(CheckedReader& from,
                                           std::shared_ptr<const KvLayout> layout,
                                           int64_t logical);

  // Makes room for `n` more paged tokens in every group of `groups` (all groups if empty) and counts them in:
  // takes pages, and copies the last page (payload and index) first if it is partial and shared. positions:
  // logical positions of the n tokens. The groups must have no tail: its tokens are older, so they are closed
  // first. All or nothing.
  Status append(KvSequence& seq, std::span<const int32_t> positions, std::span<const int> groups = {});
  // Slot (page id * page + t) of paged token `ordinal` of a group.
  int64_t slot(const KvSequence& seq, int group, int64_t ordinal) const;

  // Tokens into the ring: counts `n` new tail tokens (n + tail <= layout.tail()); their ring items follow the
  // newest. Takes state pages, if the layout has any, hence may fail. All or nothing.
  Status append_tail(KvSequence& seq, int group, std::span<const int32_t> positions);
  // The oldest `n` tail tokens become paged: takes pages for them (a multiple of the page or not) and moves
  // the counts; the codec copies the bytes (close). The ring items stay readable until overwritten. All or
  // nothing.
  Status close_tail(KvSequence& seq, int group, int64_t n);
  // item * tail + place in the ring of tail token i; i >= tail: where the next ones will go.
  int64_t ring_slot(const KvSequence& seq, int group, int64_t i) const;

  // Windows: the leading full pages of a group whose tokens all lie before `position` go back, with their
  // state; the others keep their places in their pages. Never fails.
  void drop_before(KvSequence& seq, int group, int64_t position);
  // Takes a group's table out and leaves an empty one (the ring's contents are no longer counted).
  KvTable take_table(KvSequence& seq, int group);

  // Takes back what append, append_tail and close_tail counted in since the mark (pages go, bytes do not
  // matter: nothing was written since). Only those three may have run in between.
  std::vector<KvMark> mark(const KvSequence& seq) const;
  void rollback(KvSequence& seq, std::span<const KvMark> marks);

  // Leaves exactly the given ordinals of each listed group (each listed once), in order. Leading pages that
  // survive whole stay; from the first that does not, tokens are copied, as bytes, into fresh pages; their
  // index becomes invalid. Components with per > 1 move in whole items: from there on ordinals must come in
  // whole aligned groups of `per` (the last group of the row may be short). State goes with its tokens, the
  // tail's included. All groups or none: kExhausted leaves the sequence as it was, and is known before
  // anything moves. Groups are then rewritten one after another, so at most live bytes + the fresh pages of
  // one group are in use:
  //   fresh = (pages(kept) - whole) x (payload + index) + (pages(kept + tail) - whole of the state) x state
  //   bytes,
  // and a group's unshared old pages are back before the next group starts.
  Status keep(KvSequence& seq, std::span<const GroupKeep> lists);
  // Whether keep(seq, lists), then close_tail(seq, g, closing[g]) of every group (closing empty: of none),
  // find their pages. If ok they will, as long as nothing else takes from the arena before they do;
  // otherwise kExhausted.
  Status can_keep(const KvSequence& seq,
                  std::span<const GroupKeep> lists,
                  std::span<const int64_t> closing = {}) const;

  // For layer-major prefill: a table made of the survivors of the current one, `fresh` more paged tokens
  // (positions given; pages taken, bytes unwritten) and a new tail (positions given; tail_first = 0, the
  // caller writes the ring of a cloned block), built aside while the sequence still serves the old one. Whole
  // leading pages are shared, other survivors copied as in keep; a shared partial page is copied before fresh
  // tokens go in. State pages are never shared: survivors' state is copied. If fresh, then tail, begin with
  // the positions of the whole old tail, those tokens are the old tail's and their state follows the
  // survivors' too; all else is zero. tail may hold at most layout.tail() tokens.
  Result<KvTable> stage_table(const KvSequence& seq,
                              const GroupKeep& survivors,
                              std::span<const int32_t> fresh,
                              std::span<const int32_t> tail);
  // Swaps staged tables in (one per group, in order) and, if given, the new kPerSequence block. Never fails;
  // old pages go back at once.
  void install(KvSequence& seq, std::vector<KvTable> tables, PageRef sequence_block);
  // A private copy of the kPerSequence block; empty if there is none.
  Result<PageRef> clone_block(const KvSequence& seq);

  // Bytes of the pages a sequence refers to (shared ones included), payload, index, state and its block.
  int64_t bytes(const KvSequence& seq) const;
  // Checks the invariants of a sequence (page counts and sizes, private state, indexed <= tokens); aborts on
  // a violation. Debug builds call it after every mutation.
  void check(const KvSequence& seq) const;

 private:
  struct Growth {                      // pages taken for a table, not yet in it
    PageRef payload_copy, index_copy;  // of the last page, if partial and shared
    std::vector<PageRef> payload, index, state;
  };
  // Pages that a table needs to hold `paged` and `all` tokens.
  Result<Growth> grow(const KvLayout& layout, int group, const KvTable& table, int64_t paged, int64_t all);
  static void apply(KvTable& table, Growth growth);
  Status take(std::vector<PageRef>& into, int64_t n, int64_t bytes, bool zero = false);
  Result<PageRef> take_block(const KvLayout& layout, const PageRef& from);  // zero if `from` is empty
  // The table of the survivors and, if `carry`, the tail. share_state: whole state pages are taken over, not
  // copied.
  Result<KvTable> gather(const KvSequence& seq, const GroupKeep& list, bool carry, bool share_state);
  std::unique_ptr<PageArena> arena_;
};

}  // namespace se
