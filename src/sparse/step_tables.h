// sparse/step_tables.h -- the tables of one step for the rows of one family: what KvView promises, in host
// memory. Rows are added one by one (past first, then the places of the new tokens); arrays go by row of the
// step.
#pragma once
#include <span>
#include <vector>

#include "kv/kv_store.h"
#include "sparse/plan.h"

namespace se {

class StepTables final : public KvView {
 public:
  // staged: tables of PlanSequence::staged_, one layer of plain pages; every layer maps to its only one.
  StepTables(
      const Plan& plan, const KvLayout& layout, const char* base, int rows, int64_t tokens, bool staged);

  // The row's paged tokens (the first `limit` of them if >= 0) and ring, as they are now; `next`: position of
  // the token that comes after them (staged: of the first staged one).
  void add_past(int row, const KvSequence& seq, int64_t next, int64_t limit = -1);
  // Where tokens [first_token, first_token + n) of the step go: `table` is the group's table after they were
  // counted in, and held `paged` + `tail` tokens before. block: item of the kPerSequence block whose ring
  // takes them.
  void add_places(int row,
                  int group,
                  const KvTable& table,
                  int64_t paged,
                  int64_t tail,
                  int64_t first_token,
                  int64_t n,
                  int64_t block);
  // Staged: tokens go to ordinals [ordinal, ordinal + n).
  void add_staged_places(const KvTable& table, int64_t ordinal, int64_t first_token, int64_t n);

  TensorView plane(const Stage& owner, int layer, int component) const override;
  KvIndex past(int layer, Block block = Block::kPayload) const override;
  KvIndex tail(int layer) const override;
  TensorView slots(int layer) const override;
  KvIndex fresh(int layer) const override;
  TensorView ring_item() const override;

  // i64 [rows], all equal: what past() of `layer` adds to its slots.
  TensorView offsets(int layer, Block block) const;
  bool any_past(int layer) const;
  int64_t past_tokens(int layer, int row) const;
  int64_t tail_tokens(int layer, int row) const;

 private:
  struct Ragged {  // one KvIndex under construction
    std::vector<int64_t> runs, start;
    std::vector<int32_t> counts, tokens;
    explicit Ragged(int rows = 0) : start(size_t(rows)), counts(size_t(rows)), tokens(size_t(rows)) {}
    void begin(int row) { start[size_t(row)] = int64_t(runs.size()); }
    void push(int row, int64_t slot, int64_t n) {
      runs.push_back(run(slot, n)), ++counts[size_t(row)], tokens[size_t(row)] += int32_t(n);
    }
    KvIndex view(int unit, int page, const TensorView& offset) const;
  };
  struct Group {
    Ragged past, index, state, tail, fresh;
    std::vector<int64_t> past_first, tail_first;  // [rows]: position of the first token of past, of tail
    std::vector<int64_t> slot;                    // [tokens], without the layer's offset
    std::vector<uint8_t> paged;                   // [tokens]: a paged slot (offset applies)
  };
  bool windowed(int layer) const { return plan_.model.layers[size_t(layer)].kind == LayerKind::kWindow; }
  int layer_of(int layer) const { return staged_ ? 0 : layer; }
  const Group& group(int layer) const { return groups_[size_t(layout_.group_of(layer_of(layer)))]; }
  void push_pages(int row, Ragged& to, std::span<const PageRef> pages, int64_t tokens);

  const Plan& plan_;
  const KvLayout& layout_;
  const char* base_;
  int rows_;
  bool staged_;
  std::vector<Group> groups_;
  std::vector<int64_t> offsets_;        // [layer][block][rows]
  std::vector<int64_t> ring_item_;      // [rows]
  mutable std::vector<int64_t> slots_;  // of the layer asked last
};

}  // namespace se
