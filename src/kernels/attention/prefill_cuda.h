// kernels/attention/prefill_cuda.h -- prefill attention over paged past and present on CUDA (sm_90a): rows of
// any number of tokens. The same mathematics as attend_plain (attention.h): token t of row r sees the part's
// tokens, then, if the present is set, present tokens kv_from[r] .. t.
//
// Formats: K/V of 128 channels, planes as decode_cuda.h describes them. BF16 is read where it lies, with
// strides of multiples of 16 bytes; any page, unit and runs, but runs of whole 16 tokens inside units of at
// least 16 go through the copy engine, all others through one warp's loads, slowly. F16, FP8 and KIVI are
// restored first, once a launch: workspace for the listed rows' pasts in BF16, at most 512 bytes a place and
// KV head.
//
// Numerics: q, the present's K and V, those restored (in f32 before) and the softmax weights are rounded to
// BF16 (2^-8 each at most), sums are f32. A row's result never depends on its batch mates, the grid or the
// number of processors: tiles of 128 keys from the row's first on (with a window: from multiples of 128
// positions on, so that pages that have gone do not show), queries in tiles of the row's own, splits added up
// in ascending order.
#pragma once
#include <cstdint>

#include "device/cuda/memory.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/prefill_params_cuda.h"

namespace se::cuda {

// Host decisions, made once per kind of step.
struct PrefillPlan {
  int grid = 0;        // blocks: what the device holds at once
  int max_splits = 1;  // of any row
};
// cap and unit of the index, most tokens of a step, the least split of any row that has one (0: none has):
// StepRows::split, a multiple of 128, 0 or no table for none. Every tile of queries of the step then gets
// room for max_splits partial results of 65 KiB.
PrefillPlan plan_prefill(int64_t cap, int unit, int tokens, int least_split);
// A split for rows whose chunks have so many tokens and that grow to so many places: a constant of their
// plan. Short chunks give few tiles of queries; their keys are cut so that all processors have some. 0: no
// need.
int prefill_split(int tokens, int kv_heads, int group, int64_t places);
int64_t prefill_workspace_bytes(const PrefillPlan& plan, const AttendArgs& args, const AttentionPart& part);

// What attend_prefill hands to its kernels: params and maps. Takes the BF16 present from `workspace`.
struct PrefillLaunch {
  PrefillParams p;
  PrefillMaps maps;
  DecodeType type = DecodeType::kBF16;
  int grid = 0, tiles = 0;  // tiles of queries of all rows and KV heads, at most
};
PrefillLaunch prefill_launch(const AttendArgs& args,
                             const AttentionPart& part,
                             const PrefillPlan& plan,
                             Workspace& workspace);

// The rows of `args.list` (at most 512); all tensors on the device; q, present and out with 16-byte aligned
// rows. Writes args.out and args.lse of all tokens of these rows. With a window, a row's tokens have
// positions that follow each other. No latent heads.
void attend_prefill(const AttendArgs& args,
                    const AttentionPart& part,
                    const PrefillPlan& plan,
                    Workspace& workspace,
                    Stream& stream);

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
