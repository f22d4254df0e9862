// kernels/attention/latent_decode_cuda.h -- paged decode attention over latents (MLA, absorbed; latent.h) on
// CUDA (sm_90a): one query token per row, all heads share one key of 576 channels, whose first 512 are its
// value.
//
// Format: BF16, plane 0 [page id, item, 1, 576], strides multiples of 16 bytes; AttentionPart::v_in_k = 512.
// Runs of whole 16 tokens that begin at multiples of 8 items go through the copy engine, others through one
// warp's loads.
//
// Numerics as decode_cuda.h: keys as they are, q and the softmax weights as two BF16 pieces each (2^-17),
// sums in f32. Splits of split[row] places, merged in ascending order, the present last: batch mates and grid
// leave no trace.
#pragma once
#include <cstdint>

#include "device/cuda/memory.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/latent_decode_params_cuda.h"

namespace se::cuda {

struct LatentPlan {
  int grid = 0, max_splits = 0;
};
// cap and unit of the index, the least split of any row.
LatentPlan plan_latent_decode(int64_t cap, int unit, int least_split);
int64_t latent_workspace_bytes(const LatentPlan& plan, int rows, int heads);
// Decode rows of `args.list` (one token each, several present tokens allowed). q f32 [tokens, heads, 576],
// out f32 [tokens, heads, 512], lse f32 [tokens, heads]; present k f32 [tokens, 1, 576]; 16-byte aligned
// rows.
void attend_latent(const AttendArgs& args,
                   const AttentionPart& part,
                   const LatentPlan& plan,
                   Workspace& workspace,
                   Stream& stream);
DecodeParams latent_params(const AttendArgs& args, const AttentionPart& part);

}  // namespace se::cuda
