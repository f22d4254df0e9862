// kernels/attention/prefill_cuda.h -- prefill attention over paged past and present on CUDA (sm_90a): rows of
// any number of tokens. The same mathematics as attend_plain (attention.h): token t of row r sees the part's
// tokens, then, if the present is set, present tokens kv_from[r] .. t.
//
// Format: BF16 K/V of 128 channels, planes K and V alike, [page id, item, head, channel] with 16-byte
// multiples as strides. Any page, unit and runs; runs of whole 16 tokens inside units of at least 16 go
// through the copy engine, all others through one warp's loads, slowly.
//
// Numerics: q, the present's K and V and the softmax weights are rounded to BF16 (2^-9 each), sums are f32. A
// row's result never depends on its batch mates, the grid or the number of processors: tiles of 128 keys from
// the row's first on, queries in tiles of the row's own.
#pragma once
#include <cstdint>

#include "device/cuda/memory.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/prefill_params_cuda.h"

namespace se::cuda {

int prefill_grid();  // blocks the current device holds at once
// Of a step of so many tokens.
int64_t prefill_workspace_bytes(int tokens, int kv_heads);

// What attend_prefill hands to its kernels: params and maps. Takes the BF16 present from `workspace`.
struct PrefillLaunch {
  PrefillParams p;
  PrefillMaps maps;
  int grid = 0;
};
PrefillLaunch prefill_launch(const AttendArgs& args,
                             const AttentionPart& part,
                             int grid,
                             Workspace& workspace);

// The rows of `args.list` (at most 512); all tensors on the device; q, present and out with 16-byte aligned
// rows. Writes args.out and args.lse of all tokens of these rows. No windows, no latent heads.
void attend_prefill(
    const AttendArgs& args, const AttentionPart& part, int grid, Workspace& workspace, Stream& stream);

// FlashPrefill: tiles of queries read blocks of 128 keys chosen by BlockChoice, all others as their means
// (spec: FlashPrefill-V2, its packed tiles of 128 rows). Blocks: 128 places of the past each, then 128
// present tokens each from kv_from on; where the past is a multiple of 128 tokens without holes these are the
// blocks of the whole sequence. Means are rounded to BF16. The present must be set.
struct SparsePrefill {
  PrefillLaunch launch;
  int items = 0;  // at most; lists of launch.p are filled by item
};
int64_t sparse_prefill_workspace_bytes(const AttendArgs& args, const AttentionPart& part);
SparsePrefill sparse_prefill(const AttendArgs& args,
                             const AttentionPart& part,
                             int grid,
                             Workspace& workspace);
// The lists, then the attention, of what sparse_prefill laid out.
void choose_blocks(const SparsePrefill& s, const BlockChoice& choice, Stream& stream);
void attend_blocks(const SparsePrefill& s, Stream& stream);

}  // namespace se::cuda
