// kernels/attention/records.h -- the records of one attention step (contract.md 2, parts 2 and 3): what is
// read (KvIndex), by whom (StepRows, RowList), in which parts (AttentionView), and what scores are wanted.
// All tables are plain tensors on the device of the step; on the CPU they live in host memory.
//
// Words: a run is a slot and a token count, inside one page; an ordinal is a token's place in its row (run
// number x page + place in the run). A unit is what a reader scores and reads.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/attention/model_kv.h"

namespace se {

inline int64_t run(int64_t slot, int64_t tokens) { return slot << 16 | tokens; }
inline int64_t run_slot(int64_t r) { return r >> 16; }
inline int64_t run_tokens(int64_t r) { return r & 0xffff; }

// Tokens of each row as runs; ragged. slot = page id * page + t, a page id counts 256-byte steps of the
// arena, so a plane [page id, item in page, head?, shape...] has stride 256 bytes in its first dimension.
struct KvIndex {
  TensorView runs;    // i64 [pool]  run(slot of first token, tokens), inside one page; one pool for all
  TensorView start;   // i64 [rows]  row r owns runs[start[r]] .. + counts[r]
  TensorView offset;  // i64 [rows]  added to its slots: the layer's slice of a page
  TensorView counts, tokens;  // i32 [rows]  runs; tokens in them
  TensorView first;  // i64 [rows]  windows: position of the row's first token (of the next one, if the row is
                     // empty); the row has no gaps, so places are positions. Empty: places begin at 0
  int unit = 16, page = 16;  // most tokens in a run; tokens in a page
  int row_heads = 1;         // kv_heads: one row per (row, KV head) in all arrays
  int64_t cap = 0;           // most runs in a row, a constant of the plan
};

struct StepRows {      // packed once on the host; decode rows first, then prefill chunks
  TensorView q_start;  // i32 [rows + 1] row r owns tokens q_start[r] .. q_start[r + 1]
  TensorView kv_from;  // i32 [rows]     first present token row r sees, causally
  TensorView pos;      // i32 [tokens]   logical positions
  TensorView item;     // i64 [rows]     item in kPerSequence planes (256-byte steps)
  TensorView split;    // i32 [rows]     tokens per split of attention: a constant of the row's plan
  int rows = 0, decode_rows = 0;
};

// The rows of one family. "[rows]" arrays go by row of the step, "[list]" arrays by place in ids.
struct RowList {
  TensorView ids;  // i32 [cap]
  TensorView n;    // i32 [1]
  int cap = 0;
};

struct Present {  // this step's tokens in one layer
  // f32 [tokens, heads, dim] after norm and RoPE; q in the space of stored keys, but for expanded prompts.
  // MLA: v is a view of the first channels of k, and whoever changes k changes it.
  TensorView q, k, v;
  bool v_in_k() const { return !k.empty() && v.data == k.data; }
};

// Prompts: which blocks of keys each tile of queries reads. Block b holds the linear places [b * block,
// (b + 1) * block) of the part and the present that goes on behind it. A tile is `tile` packed query rows of
// one KV head: packed row r is query head r % group of that head's group, of the row's token r / group. Item
// first[i] + kv_head * tiles + t is tile t of the i-th listed row, of tiles = ceil(tokens * group / tile).
struct BlockList {
  int block = 128, tile = 128;
  TensorView first;   // i64 [list]
  TensorView counts;  // i32 [items] blocks that an item reads
  TensorView blocks;  // i32 [items, cap] ascending
  // Of those it leaves out, the blocks that count as `block` tokens with their mean key and value: full ones
  // before the tile's first query. Empty tensors: none.
  TensorView mean_counts, mean_blocks;  // as counts, blocks
  TensorView mean_k, mean_v;            // f32 [list, kv_heads, blocks, dim]
};

struct AttentionPart;
// One pass of attention of the rows in `list` over one part. Row r's tokens see, in this order, the part's
// tokens and, if `present` is set, the present tokens kv_from[r] .. its own, included.
struct AttendArgs {
  const StepRows* rows = nullptr;
  RowList list;
  TensorView q;  // f32 [tokens, q_heads, k_dim]
  float scale = 1;
  int window = 0;  // > 0: a token at position p sees keys at positions > p - window; index.first is set
  // MLA, prompts: q and out are in head space, the keys of part and present are latent and are expanded on
  // the way (latent.h). Null: all is in the space of stored keys.
  const LayerKv* expanded = nullptr;
  const Present* present = nullptr;   // set when the part takes the present in the same pass
  const BlockList* blocks = nullptr;  // prompts: the key blocks that are read; null: all that a query sees
  TensorView out;                     // f32 [tokens, q_heads, v_dim]  normalised in the part; empty row: 0
  TensorView lse;                     // f32 [tokens, q_heads]         natural log; empty row: -inf
  TensorView logits;  // AttentionPart::logits: f32 [tokens, q_heads, cap], q.k (unscaled) of token
                      // t of run e at e * unit + t; entries past the row's tokens are left alone
  Arena* scratch = nullptr;
};
using AttendFn = void (*)(const AttendArgs&, const AttentionPart&, Stream&);

struct AttentionPart {
  AttendFn attend = nullptr, logits = nullptr;
  KvIndex index;                      // what to read
  std::array<TensorView, 12> planes;  // planes and constants (codebooks, factors)
  std::array<int32_t, 4> args{};
  int v_in_k = 0;  // MLA, the driver says it: a value is the first so many channels of its key, there are no
                   // planes of values
  bool with_present = false;  // can take the present too: at most one part of a view
};
struct AttentionView {  // one softmax over the parts and the present
  std::array<AttentionPart, 4> parts;
  int n = 0;
};

enum class Reduce : uint8_t { kMax, kMean, kSum };
struct ScoreSpec {
  // kStep: the decode step's. kChunk: last n of every prompt chunk (0: all). Only where a pick is due:
  // kWindow, last n of the prompt; kRing, last n decode queries, scored at commit.
  enum class Queries : uint8_t { kStep, kChunk, kWindow, kRing } queries = Queries::kStep;
  int window = 0;                     // n
  bool prob = true;                   // softmax probabilities; false: raw logits
  bool by_product = false;            // over what was read; else an own pass, whole row
  int skip_first = 0, skip_last = 0;  // candidates: all but the row's first and last so many tokens
  bool full_denominator = false;      // softmax over the whole causal row instead of the candidates
  bool per_kv_head = false;
  Reduce over_queries = Reduce::kMean, over_heads = Reduce::kMax;
  std::vector<int> layers;  // empty: all
  bool operator==(const ScoreSpec&) const = default;
};
using Scores = TensorView;  // one spec's: f32 [list, heads, ordinals]; empty: none

}  // namespace se
