// sparse/driver.h -- the one caller of every stage: runs the attention of a step for rows of any plans.
//
// A step is  begin -> model layers (attend per layer) -> commit. Layer-major prefill (Plan::staging ==
// kLayer) goes in slices of one layer and one chunk instead:  for each layer, for each chunk: begin_slice ->
// model layer -> end_slice;  then commit_prompt. Decode steps of other sequences may run between slices.
// Numerics: a row's result depends neither on its batch mates nor on the cut of its prompt (where the plan
// says chunk == 0) nor on the number of threads.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention/model_kv.h"
#include "kv/kv_store.h"
#include "sparse/plan.h"

namespace se {

struct KvCounters {  // counted, not assumed
  int64_t decode_steps = 0;
  // Sums over layers of kind kFull of tokens read by decode steps (paged and ring; the present not).
  int64_t read_tokens = 0;
  int64_t last_read_tokens = 0;           // of the last decode step
  int64_t picks = 0, dropped_tokens = 0;  // sums over layers
  // By layer, where a prefill reader narrows; of the prompt so far, summed over tiles of queries: the keys
  // that a tile reads (means not counted) and those up to its last query, which dense would read.
  struct PromptReads {
    int64_t read = 0, seen = 0;
  };
  std::vector<PromptReads> prompt;
};

// One sequence under one plan. Owned by the engine; touched by the driver only between begin and commit.
class PlanSequence {
 public:
  const Plan& plan() const { return *plan_; }
  std::shared_ptr<const Plan> plan_ref() const { return plan_; }
  const KvSequence& kv() const { return *kv_; }
  const KvCounters& counters() const { return counters_; }
  int64_t logical() const { return logical_; }  // tokens forwarded
  bool prefilling() const { return staged_ != nullptr; }
  // MLA: made as the beginning of one long prompt would be, so that this may go on from it bit for bit.
  bool shareable() const { return plan_->expand_from == 0 || expanded_tokens_ == logical_; }
  // A turn: `prompt` more tokens, then at most `max_new` generated. Facts that due/resident/peak see.
  void start_turn(int64_t prompt, int64_t max_new);

 private:
  friend class Driver;
  friend class StepTables;
  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<KvSequence> kv_;
  uint64_t id_ = 0;
  int64_t turn_start_ = 0, prompt_ = 0, max_new_ = 0, logical_ = 0, generated_ = 0;
  std::vector<int64_t> excess_;  // by layer: kept beyond the budget by the last pick (grain)
  int64_t ring_count_ = 0;       // valid queries in the ring
  KvCounters counters_;
  // MLA: this turn's prompt is attended in head space (kernels/attention/latent.h); of the tokens forwarded,
  // so many were; tokens taken over by attach, which count as this prompt's.
  bool expanded_ = false;
  int64_t expanded_tokens_ = 0, attached_ = 0;
  std::vector<std::pair<int, KvTable>> retired_;  // windows: by group, what this step still attends
  std::unique_ptr<KvSequence> staged_;            // layer-major prefill: plain pages of one layer
  std::vector<KvTable> pending_;                  // by group: tables that commit_prompt installs
  std::vector<uint8_t> pending_made_;
  std::vector<int64_t> pending_excess_;  // by layer
  // By group, the survivors while its layers go through: ordinals over paged, tail and staged tokens.
  std::vector<std::vector<int32_t>> kept_;
  PageRef pending_block_;
};

struct DriverRow {
  PlanSequence* seq = nullptr;
  int64_t tokens = 1;       // of this step
  bool decode = false;      // a generated token goes in (tokens == 1)
  bool last_chunk = false;  // prefill: the prompt ends with this chunk
};

// What one decode row read in one layer. Every stage so far reads the same tokens for all heads of a layer.
struct KvRead {
  const PlanSequence* seq = nullptr;
  int layer = 0;
  std::span<const int32_t> positions;  // logical, ascending; the row's own token left out
  std::span<const float>
      weights;  // attention probability of each, mean over the query heads; empty: not asked
};

class Driver final : public AttentionPort {
 public:
  Driver(const ModelKv& model, KvStore& store, Stream& stream);
  ~Driver() override;

  Result<std::unique_ptr<PlanSequence>> open(std::shared_ptr<const Plan> plan);
  Result<std::unique_ptr<PlanSequence>> fork(const PlanSequence& from);

  // Prompts computed once for several plans, equal in every bit to computing them anew.
  //   attach: shares the pages of `from`, which was made under a plan with an equal state_id; indexes are
  //   rebuilt. seed_slice: for a layer-major prompt that begins with the tokens of `from` (made under a plan
  //   that holds every token in the model's dtype): stands for the slice [0, tokens of from) of `layer`. The
  //   first of its slices.
  // can_seed tells whether `from` will do for `plan`.
  Result<std::unique_ptr<PlanSequence>> attach(std::shared_ptr<const Plan> plan, const PlanSequence& from);
  static bool can_attach(const Plan& plan, const PlanSequence& from);
  static bool can_seed(const Plan& plan, const PlanSequence& from);
  Status seed_slice(PlanSequence& seq, int layer, const PlanSequence& from);

  // Between turns: a sequence as bytes, and back under the same plan. Errors as KvStore::load.
  void save(const PlanSequence& seq, CheckedWriter& to) const;
  Result<std::unique_ptr<PlanSequence>> load(std::shared_ptr<const Plan> plan, CheckedReader& from);

  // Decode rows first, then prefill chunks; packed tokens in row order. Takes pages for all rows: kExhausted
  // leaves every sequence as it was. Rows of layer-major plans may only decode here.
  Status begin(std::span<const DriverRow> rows);
  void attend(int layer,
              const TensorView& q,
              const TensorView& k,
              const TensorView& v,
              const TensorView& out,
              Stream&) override;
  // Picks, closes, indexes. One Status per row (kExhausted: pick and close are each done whole or not at all;
  // the sequence can be read, forked and freed, and takes no further step).
  std::vector<Status> commit();

  // Layer-major prefill of one sequence: tokens [first, first + n) of the turn's prompt through `layer`.
  Status begin_slice(PlanSequence& seq, int layer, int64_t first, int64_t n);
  Status end_slice();                       // after the model's layer; picks and stores after the last chunk
  Status commit_prompt(PlanSequence& seq);  // after the last layer: tables swap, indexes are built
  void abandon_prompt(PlanSequence& seq);   // cancelled: the sequence is as before the turn

  // Called for every decode row and full-attention layer (empty: not at all) until it is replaced. Costs a
  // pass over what was read where weights are wanted.
  void trace(std::function<void(const KvRead&)> on_read, bool weights);

  int64_t bytes(const PlanSequence& seq) const;  // counted: pages it refers to, staged ones included
  void force_select_for_test(bool on) { force_select_ = on; }
  // Benchmarks: attend() stores K and V and leaves `out` alone, so that deep caches are filled without a
  // prefill.
  void fill_only(bool on);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  bool force_select_ = false;
};

}  // namespace se
