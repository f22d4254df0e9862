// sparse/contract.h -- what the stages of a KV plan and the engine say to each other (docs/architecture.md).
//
// Goals: a stage is one folder; device hooks only enqueue; every mutation is data that the store executes;
// rows of many plans share a step. Non-goals: model graphs, prefix trees, serving.
//
// The driver is the one caller. Per layer:  round K/V to the model's dtype -> write -> as_stored -> select
// (the plan's reader for decode rows, its prefill reader for prompts) -> parts, attend -> (scores -> pick,
// where decided by layer);  at commit, when due:  scores -> pick -> keep -> close -> index. Hooks are const:
// a stage is immutable and shared by all requests that name it; what a sequence owns lives in components.
#pragma once
#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/status.h"
#include "kernels/attention/records.h"

namespace se {

class Stage;
class Codec;

// What a family's rows hold. All KvIndex arrays go by row of the step; rows outside the family are empty.
struct KvView {
  virtual ~KvView() = default;
  // One component of `owner` in one layer: [page id, item in page, head?, shape...], strided; per sequence
  // [item id, head?, shape...] (index it with StepRows::item). Empty if undeclared.
  virtual TensorView plane(const Stage& owner, int layer, int component) const = 0;
  // Paged tokens before this step (at commit: after it). The blocks' tables are parallel.
  virtual KvIndex past(int layer, Block block = Block::kPayload) const = 0;
  // The codec's ring before this step (at commit: after it), oldest first: slot = item * tail + place; page =
  // unit = tail.
  virtual KvIndex tail(int layer) const = 0;
  // i64 [tokens] where the present's tokens go, the layer's offset included: a paged slot, a ring slot where
  // the codec has a ring, -1 for tokens of a chunk that go straight into `fresh` or that no later step sees
  // (windows).
  virtual TensorView slots(int layer) const = 0;
  // Codecs with a ring, prefill: the paged places that a chunk's write fills, with the oldest of tail, then
  // present.
  virtual KvIndex fresh(int layer) const = 0;
  // i64 [rows]: item (256-byte steps) of the kPerSequence block that `slots` writes; StepRows::item is the
  // one `tail` reads.
  virtual TensorView ring_item() const = 0;
};

struct KvPicked {       // what a reader asks for: its own tables, never a page table edited in place
  TensorView ordinals;  // i32 [rows, cap] of each run's first token, ascending
  KvIndex index;     // the same as runs: start is set (row * cap), the reader fills runs, counts and tokens
  BlockList blocks;  // prefill readers only, in place of all the above
};

struct KeepList {  // i32 [list, cap] ascending; i32 [list]
  TensorView ordinals, counts;
};
struct Units {  // work at commit, of many rows: one index row per unit (runs of the unit's tokens)
  KvIndex payload, index;
  KvIndex tail;    // close: the tokens to encode, in the ring
  TensorView row;  // i32 [units] row of the step
  int n = 0;
};
struct StoredKv {   // as a later read will see it: f32 [tokens, heads, dim], rows of the index one after
                    // another
  TensorView k, v;  // v empty if not wanted
};
// Bounds of the keys in each item of `per` tokens, in the pages of `block`; hi empty: hi = lo + levels *
// step. lo, hi, step: planes [page id, item in page, head, k_dim].
struct KeyBounds {
  TensorView lo, hi, step;
  int levels = 0, per = 0;
  Block block = Block::kIndex;
};

enum class Phase : uint8_t { kDecode, kPrefill, kCommit };
struct DeviceStep {  // one call serves all rows of one family; no host value of this step
  Phase phase;
  const StepRows& rows;
  RowList list;
  TensorView params;  // i32 [list, 8] Stage::params of each row, of the stage that is called
  const KvView& kv;
  const Codec& codec;
  KvPicked& picked;
  Stream& stream;
  Arena& scratch;             // the only memory a hook may take
  bool force_select = false;  // tests: select and pick even where everything fits
};

struct SeqView {  // host facts; hooks that take it are pure functions of it
  uint64_t id = 0;
  int64_t prompt = 0, max_new = 0, logical = 0, generated = 0;
  std::span<const int64_t> resident;  // by layer, with this step's tokens, less the last pick's excess
  bool decode = false, last_chunk = false, staged = false;
};

// ---- stages ------------------------------------------------------------------------------------
enum class PrefixMode : uint8_t { kNone, kChain, kRadix };
struct StageSpec {
  std::vector<ComponentSpec> components;
  std::vector<ScoreSpec> scores;
  PrefixMode prefix = PrefixMode::kRadix;
  int64_t chunk = 0;       // > 0: prompts are cut at absolute multiples; 0: any cut gives one result
  int64_t last_chunk = 0;  // fewest tokens in a prompt's last chunk
};
class Stage {
 public:
  virtual ~Stage() = default;
  virtual void visit(FieldVisitor&) = 0;                         // every field once, in table order
  virtual Status validate() const { return ok(); }               // relations between fields
  virtual Status accepts(const ModelKv&) const { return ok(); }  // of fields and model; checked before spec()
  virtual std::string family() const = 0;  // equal families share launches; what may differ is in params
  virtual std::array<int32_t, 8> params(const SeqView&) const { return {}; }
};

struct CodecSpec : StageSpec {
  int grain = 1;                   // encoded tokens that move, stay or go together
  int tail = 0;                    // size of the ring of newest tokens, held exact: always kept, always read
  int residual = 0;                // tokens a close or a chunk leaves in it at least: tail = residual + grain
  int bounds_per = 0;              // tokens per KeyBounds item it offers; 0: none
  bool present_as_stored = false;  // the present is attended as as_stored() leaves it
};
class Codec : public Stage {
 public:
  virtual CodecSpec spec(const ModelKv&) const = 0;
  // Stores the present at kv.slots (and fills kv.fresh). k, v are rounded to the model's KV dtype.
  virtual void write(int layer, const Present&, DeviceStep&) const = 0;
  virtual void close(int /*layer*/, const Units&, DeviceStep&) const {
  }  // encodes tail tokens into payload units
  // Appends the parts that read `read` (paged tokens) and, where there is one, the ring.
  virtual void parts(int layer, const KvIndex& read, AttentionView&, DeviceStep&) const = 0;
  virtual StoredKv values(int layer, const KvIndex&, bool want_v, DeviceStep&) const = 0;
  virtual void as_stored(int /*layer*/, Present&, DeviceStep&) const {
  }  // rounds k, v of the listed rows in place
  virtual KeyBounds bounds(int /*layer*/, const KvView&) const { return {}; }
};

struct ReaderSpec : StageSpec {
  std::vector<int> source;        // by layer: -1 reads all; l selects itself; k < l reuses k's selection
  int unit = 16, index_unit = 0;  // tokens per run it emits; per call of index(), 0: no index
  int64_t cap = 0;                // most runs it emits in a row
};
class Reader : public Stage {
 public:
  virtual ReaderSpec spec(const ModelKv&, const CodecSpec&) const = 0;
  virtual void index(int /*layer*/, const Units&, DeviceStep&) const {
  }  // units filled, changed, or without index
  virtual void select(int layer,
                      const Present&,
                      DeviceStep&) const = 0;  // past -> s.picked; decode rows only
  // Most paged tokens a decode step reads of a row that holds `paged` of them, in a layer that narrows.
  virtual int64_t read_tokens(int64_t paged) const = 0;
};

struct PrefillSpec : StageSpec {
  std::vector<uint8_t> narrows;  // by layer: 0 reads all
};
class PrefillReader : public Stage {
 public:
  virtual PrefillSpec spec(const ModelKv&, const CodecSpec&) const = 0;
  // Prompt rows: which blocks of the past that s.kv and s.codec hold, and of the present behind it, each tile
  // of queries reads -> s.picked.blocks, in s.scratch. K and V of the present are as they will be attended.
  // Parts of a view before that past (what a keeper left of earlier turns) are read whole.
  virtual void select(int layer, const LayerKv&, const Present&, DeviceStep&) const = 0;
};

enum class KeepScope : uint8_t { kAllLayers, kLayer };  // one kept set for all layers, or one by layer
struct KeeperSpec : StageSpec {
  KeepScope scope = KeepScope::kLayer;
  int64_t sink = 0;     // first tokens that every pick keeps
  int64_t recent = -1;  // last ones; below 0: as many as the budget has room for beside the first
};
struct KeepInput {
  KeepList in;  // ordinals left to choose from, ascending; tail and step included
  std::span<const Scores>
      scores;  // by spec of the keeper: f32 [list, heads, ordinals]; empty: not of this step
  int64_t encoded = 0, tail = 0;  // ordinals below `encoded` lie in pages, the next `tail` in the ring
  int grain = 1;                  // of the encoded ones
};
class Keeper : public Stage {
 public:
  virtual KeeperSpec spec(const ModelKv&, const CodecSpec&) const = 0;
  virtual bool due(int layer, const SeqView&) const = 0;          // does this step end with a pick?
  virtual int64_t resident(int layer, const SeqView&) const = 0;  // after it, without grain excess
  virtual int64_t peak(int layer, const SeqView&) const = 0;      // most tokens at any time of its life
  // Chooses for the one listed row. out has room for all of `in`. The driver adds the tail.
  virtual void pick(int layer, const KeepInput&, KeepList& out, DeviceStep&) const = 0;
};

// ---- registration --------------------------------------------------------------------------------
enum class Axis : uint8_t { kPrefill, kKeep, kStore, kRead, kPlace };
const char* to_string(Axis axis);
struct StageEntry {
  Axis axis;
  const char* name;
  const char* summary;               // one line for help and tables
  const char* source;                // paper, "Tang et al. 2024"
  std::unique_ptr<Stage> (*make)();  // with defaults; its class fits the axis
};

}  // namespace se
