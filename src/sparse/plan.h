// sparse/plan.h -- a plan: one object per axis, immutable, shared by all requests that name it.
#pragma once
#include "kv/layout.h"
#include "sparse/contract.h"

namespace se {

enum class Staging : uint8_t {
  kNone,
  kLayer
};  // kLayer: layer-major prefill, the prompt's K/V held exact until the pick

// What a request costs, before it runs; derived from components and the keepers' arithmetic, and equal to
// what the store allocates (of a windowed layer's prompt: the most that any cut of it can hold). Tokens are
// means over the layers of kind kFull, on which plans act.
struct Cost {
  int64_t resident_bytes = 0;   // after the last token
  int64_t peak_bytes = 0;       // most at any time
  int64_t transient_bytes = 0;  // of the peak: staged prompt and copies that go again
  int64_t read_bytes = 0;       // K/V and index bytes the last decode step reads, at most
  double resident_tokens = 0, read_tokens = 0;
};

struct Plan {
  std::string text;                           // canonical
  std::unique_ptr<PrefillReader> prefill;     // null: prompts read all
  std::vector<std::unique_ptr<Keeper>> keep;  // in order, each narrows the list of the one before
  std::unique_ptr<Codec> store;
  std::unique_ptr<Codec> plain;      // the model's dtype: staged prompts
  std::unique_ptr<Reader> read;      // null: all
  std::vector<const Stage*> stages;  // owner numbers of the layout; [0] is the driver's (null)

  ModelKv model;
  CodecSpec store_spec;
  std::vector<KeeperSpec> keep_specs;
  PrefillSpec prefill_spec;                        // meaningful if prefill
  ReaderSpec read_spec;                            // meaningful if read
  std::shared_ptr<const KvLayout> layout;          // of sequences
  std::shared_ptr<const KvLayout> staging_layout;  // kLayer: one layer of plain pages; else null
  int ring = 0;                                    // decode queries kept for ScoreSpec::kRing; 0: none

  PrefixMode prefix = PrefixMode::kRadix;  // the weakest of its stages
  int64_t page = 16, split = 256, chunk = 0, last_chunk = 1;
  Staging staging = Staging::kNone;
  int64_t expand_from = 0;             // MLA: prompts of so many tokens are attended in head space; 0: no MLA
  uint64_t state_id = 0, read_id = 0;  // fingerprints: what made the bytes; what decode reads

  int owner(const Stage& stage) const;  // its number in `stages`
  // Layer-major prompts: tokens of the slice from `at` on, of a turn's prompt of `prompt` tokens: `most`, or
  // up to the next multiple of the chunk that a prefill reader fixes; never less than the last chunk wants.
  int64_t next_slice(int64_t at, int64_t prompt, int64_t most) const;
  // Of a turn of request.prompt tokens and at most request.max_new generated ones (the last is never
  // forwarded). From an empty sequence: logical is 0. Continuing: logical counts the tokens forwarded before
  // the turn, and `held` has what is left of them, (paged, tail) by group.
  Cost cost(const SeqView& request, std::span<const std::array<int64_t, 2>> held = {}) const;
};
inline constexpr int kDriverOwner =
    0;  // component 0: the query ring, f32 [ring, q_heads, k_dim] per sequence

// Parses plan text (docs/plan-language.md). Errors say what was found, what is allowed, and the nearest legal
// choice; refused compositions name both stages and why. "" and "dense" are the empty plan.
Result<std::shared_ptr<const Plan>> parse_plan(std::string_view text, const ModelKv& model);

// All stages, in axis order, then by name.
std::span<const StageEntry* const> stage_entries();

// Fields of a stage as they are printed in help, tables and JSON.
struct FieldInfo {
  std::string name, help, value;  // value: the default, printed
  Affects affects;
};
std::vector<FieldInfo> describe_fields(Stage& stage);

}  // namespace se
