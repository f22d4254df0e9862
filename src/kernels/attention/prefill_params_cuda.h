// kernels/attention/prefill_params_cuda.h -- what the kernels of prefill_cuda.h take. Free of host code.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>

#include "kernels/attention/decode_params_cuda.h"

namespace se::cuda {

inline constexpr int kPrefillTile = 128;  // packed query rows of a block; keys of a step; a block of keys

// Tensor maps of boxes of 16 keys in BF16 (prefill_cuda.cc). Past: [page id, head x group of 8 items, ..];
// present and means: [1, row, ..].
struct PrefillMaps {
  CUtensorMap past_k, past_v, now_k, now_v, mean_k, mean_v;
};

// The items of a listed row: from `first` on, for each of `splits` splits, the first of them `base`, its
// tiles of queries from the last to the first, for each tile its KV heads.
struct PrefillItems {
  int first, splits, base, unused;
};

// `a` as in decode, less the results of splits: rows have any number of tokens. Tiles of a row: packed rows r
// = position * group + head of group, 128 at a time. Split s of a row is the tiles of keys [s, s + 1) *
// split[row] / 128; an item is a tile of queries, a KV head and a split.
struct PrefillParams {
  DecodeParams a;
  PrefillItems* items = nullptr;  // [cap + 1]; of the last only `first`: how many there are
  int max_splits = 1;             // of a row
  // Of items of tiles that have several splits: sums [item, warp of 16 rows, 16, lane] of four, as wgmma's
  // results lie, not normalised; maximum (log2) and sum of weights [item, 128].
  float4* part_out = nullptr;
  float2* part_sums = nullptr;
  // A past that is not stored in BF16, restored [listed, kv_heads, past_rows, 128]: the tiles of a row from
  // that of its first key on, zeros where no token is; past_there: a bit a row. Null: read where it lies.
  __nv_bfloat16 *past_k = nullptr, *past_v = nullptr;
  uint32_t* past_there = nullptr;
  int past_rows = 0;
  int window = 0;                  // as AttendArgs
  const int64_t* first = nullptr;  // KvIndex::first, with a window
  const int32_t* pos = nullptr;
  __nv_bfloat16 *now_k = nullptr, *now_v = nullptr;  // present in BF16 [kv_heads, tokens, 128]
  int tokens = 0;                                    // of the step
  int head_groups = 0;                               // groups of 8 items from one head of a page to the next
  int32_t* taken = nullptr;                          // items handed out beyond the first of each block; zero
  // Sparse: item i reads list[i * list_cap ..], list_n[i] entries in ascending order: blocks of 128 keys,
  // those of the past, then of the present from kv_from on; then kMeanTile + m: blocks 128 m .. of which
  // `pruned` has a bit, as one key each.
  int32_t *list = nullptr, *list_n = nullptr;
  int64_t list_cap = 0;
  uint32_t* pruned = nullptr;                          // [items, mean_blocks / 32]
  __nv_bfloat16 *mean_k = nullptr, *mean_v = nullptr;  // [listed, kv_heads, mean_blocks, 128]
  float* mean_bias = nullptr;  // [listed, kv_heads, mean_blocks] log2 of a block's tokens
  int mean_blocks = 0;         // a multiple of 128
};
inline constexpr int kMeanTile = 1 << 24;

// Which blocks of keys a tile reads (spec: FlashPrefill-V2). Energy of a block: the sum over the tile's
// queries of exp(their logit with the block's mean key). Tiles of rows of at most min_len tokens and the last
// `last` tiles of a row read everything they see.
struct BlockChoice {
  float threshold = 0.12f;   // keep blocks of at least so much of the largest energy,
  int sink = 2, window = 4;  // the first blocks, and those up to the queries' own
  int last = 8, min_len = 2048;
  bool correction = true;  // blocks left out count as their mean, once for each token
};

void prefill_dense(const PrefillParams& p, const PrefillMaps& maps, int grid, Stream& stream);
void prefill_sparse(const PrefillParams& p, const PrefillMaps& maps, int grid, Stream& stream);
// Fills past_k, past_v, past_there from planes of `type`.
void prefill_restore(const PrefillParams& p, DecodeType type, Stream& stream);
// Adds up the splits of tiles that have several; tiles: at most, of all KV heads.
void prefill_merge(const PrefillParams& p, int tiles, Stream& stream);
// The present's K and V in BF16, the items; clears `taken`. Before all others.
void prefill_round(const PrefillParams& p, Stream& stream);
// Fills the means and mean_bias of all blocks, then the lists of `items` items (at most).
void prefill_means(const PrefillParams& p, Stream& stream);
void prefill_choose(
    const PrefillParams& p, const PrefillMaps& maps, const BlockChoice& choice, int items, Stream& stream);

}  // namespace se::cuda
