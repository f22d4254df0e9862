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

// `a` as in decode, less splits and their results: rows have any number of tokens. Tiles of a row: packed
// rows r = position * group + head of group, 128 at a time. Item i is KV head i % kv_heads of tile i /
// kv_heads: listed rows in order, the tiles of a row from the last to the first.
struct PrefillParams {
  DecodeParams a;
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
// The present's K and V in BF16; clears `taken`. Before all others.
void prefill_round(const PrefillParams& p, Stream& stream);
// Fills the means and mean_bias of all blocks, then the lists of `items` items (at most).
void prefill_means(const PrefillParams& p, Stream& stream);
void prefill_choose(
    const PrefillParams& p, const PrefillMaps& maps, const BlockChoice& choice, int items, Stream& stream);

}  // namespace se::cuda
