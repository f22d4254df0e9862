// sparse/driver_impl.h -- inside of the driver, shared by driver.cc (a step), driver_prompts.cc (what
// prompts read), driver_commit.cc (what follows it) and driver_slices.cc (layer-major prefill).
#pragma once
#include <map>

#include "sparse/driver.h"
#include "sparse/step_tables.h"

namespace se {

// The rows of a step that run together: same plan, same phase, same form of latent attention.
struct Family {
  std::shared_ptr<const Plan> plan;
  bool decode = false, expanded = false;
  std::vector<int32_t> ids;
  int32_t n = 0;
  std::vector<PlanSequence*> seqs;  // parallel to ids
  RowList list;
  std::unique_ptr<StepTables> tables, staged;  // staged: layer-major slices only
  KvPicked picked;
  std::vector<int64_t> picked_start;
};

// Host arrays of StepRows.
struct PackedRows {
  std::vector<int32_t> q_start, kv_from, pos, split;
  std::vector<int64_t> item;
  StepRows view;
  void clear();
  void add(
      const PlanSequence& seq, int64_t item_id, int64_t first_position, int64_t tokens, int64_t split_tokens);
  void seal(int decode_rows);
};

// One sequence by itself, at commit: tables as they are now, a one-row step around them.
struct Alone {
  PackedRows packed;
  StepTables tables;
  int32_t id = 0, n = 1;
  RowList list;
  KvPicked picked;
  Alone(const PlanSequence& seq, const KvSequence& kv, const Plan& plan, const char* base, int64_t tokens);
};

struct Driver::Impl {
  const ModelKv model;
  KvStore& store;
  Stream& stream;
  Arena scratch, commit_scratch;
  uint64_t next_id = 1;
  bool force = false, fill = false;
  std::function<void(const KvRead&)> on_read;
  bool trace_weights = false;

  std::vector<DriverRow> step;
  PackedRows packed;
  int64_t tokens = 0;
  std::vector<Family> families;
  std::vector<int64_t> resident;  // behind the SeqView made last

  struct Slice {
    PlanSequence* seq = nullptr;
    int layer = 0;
    int64_t first = 0, n = 0;
    bool last = false;
    std::vector<float> votes;  // [window, q_heads, k_dim] the last queries of the prompt
  } slice;

  Impl(const ModelKv& m, KvStore& s, Stream& st) : model(m), store(s), stream(st) {}
  const char* base() const { return store.arena().base(); }

  // The view of `seq` that hooks get; `extra` tokens are counted as resident on top of the tables.
  SeqView facts(const PlanSequence& seq, bool decode, bool last_chunk, int64_t extra);
  DeviceStep device_step(Phase phase,
                         const StepRows& rows,
                         const RowList& list,
                         const KvView& kv,
                         const Codec& codec,
                         const Stage& callee,
                         std::span<PlanSequence* const> seqs,
                         KvPicked& picked,
                         Arena& arena);
  void make_families();
  void add_to_family(int row, const DriverRow& r);

  void attend_family(Family& f, int layer, Present& present, const TensorView& out, const TensorView& lse);
  void attend_absorbed(
      Family& f, int layer, const Present& present, const TensorView& out, const TensorView& lse);
  void keep_votes(const Family& f, const LayerKv& layer, const Present& present);
  KvIndex select(Family& f, int layer, const Present& present, DeviceStep& s);
  // Prompts: what the plan's prefill reader lets the tiles of this layer read, counted; null: all. `s` is the
  // step of the part that takes the present.
  const BlockList* select_blocks(Family& f, int layer, const Present& present, const DeviceStep& s);
  void run_parts(Family& f,
                 const AttentionView& view,
                 const LayerKv& layer,
                 const Present& present,
                 const BlockList* blocks,
                 const TensorView& out,
                 const TensorView& lse);

  // Tokens of a step that a windowed group never stores (windows.h).
  int64_t skipped(const PlanSequence& seq, int group, int64_t n) const;
  void trace_reads(
      Family& f, int layer, const AttentionView& view, const Present& present, const TensorView& lse);

  int64_t bytes_needed(const DriverRow& row) const;
  Status place_row(int row, const DriverRow& r, Family& f);

  // Scores of one spec over a whole row of `ordinals` tokens held by the parts of `view`, in order.
  Scores score(const ScoreSpec& spec,
               const LayerKv& layer,
               const AttentionView& view,
               const TensorView& queries,
               std::span<const int64_t> last,
               int64_t ordinals);
  // What stays of `ordinals` tokens (paged, tail, then others) of a row in a layer; true if a keeper was due.
  bool pick(PlanSequence& seq,
            int layer,
            const SeqView& facts,
            const AttentionView& view,
            DeviceStep& s,
            const TensorView& queries,
            std::span<const int64_t> last,
            bool prompt_end,
            int64_t encoded,
            int64_t tail,
            int64_t ordinals,
            std::vector<int32_t>& kept);
  // What a decode step changes besides its own token is chosen first, then done once all its pages are sure.
  struct Picks {
    std::vector<std::vector<int32_t>> kept;
    std::vector<GroupKeep> lists;  // views of `kept`, of the groups that had a keeper due
  };
  Picks pick_after_decode(PlanSequence& seq);
  void drop_unpicked(PlanSequence& seq, const Picks& picks);
  std::vector<int64_t> full_rings(
      const PlanSequence& seq) const;  // by group: tokens to close; empty: no ring is full
  void close_rings(PlanSequence& seq, std::span<const int64_t> closing);
  void drop_pages(PlanSequence& seq);  // those before the windows of the next token
  void index_units(PlanSequence& seq);

  std::vector<int32_t> window_survivors(const PlanSequence& seq, int group) const;
  Status store_survivors(int layer, const std::vector<int32_t>& kept);
};

// Tokens that a chunk (or the survivors of a prompt) sends to pages, of `unencoded` = tail + new ones.
inline int64_t tokens_to_encode(const CodecSpec& spec, int64_t unencoded) {
  if (spec.tail == 0) return unencoded;
  return unencoded >= spec.residual ? (unencoded - spec.residual) / spec.grain * spec.grain : 0;
}

inline TensorView heads_view(const TensorView& t,
                             int heads,
                             int dim) {  // [tokens, heads * dim] -> [tokens, heads, dim]
  return TensorView::of(t.data, t.dtype, {t.shape[0], heads, dim}, t.device);
}

// K and V of a layer as the driver hands them on. MLA: v is a view of the first channels of k.
inline void set_keys(Present& x, const LayerKv& l, const TensorView& k, const TensorView& v) {
  x.k = k, x.v = v;
  if (l.latent()) x.v = k, x.v.shape[2] = l.v_dim;
}

}  // namespace se
