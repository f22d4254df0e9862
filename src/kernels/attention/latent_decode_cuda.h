// kernels/attention/latent_decode_cuda.h -- paged decode attention over latents (MLA, absorbed; latent.h) on
// CUDA (sm_90a): one query token per row, all heads share one key of 576 channels, whose first 512 are its
// value.
//
// Format: BF16, plane 0 [page id, item, 1, 576], strides multiples of 16 bytes; AttentionPart::v_in_k = 512.
//
// Numerics as decode_cuda.h: keys as they are, q and the softmax weights as two BF16 pieces each (2^-17),
// sums in f32. Splits of split[row] places, merged in an order that their number sets, the present last:
// batch mates and grid leave no trace.
#pragma once
#include <cstdint>

#include "device/cuda/memory.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/latent_decode_params_cuda.h"

namespace se::cuda {

// Host decisions, made once per batch bucket, and where splits leave their results. One launch at a time may
// use a plan.
struct LatentPlan {
  int grid = 0;        // blocks: what the device holds at once, never more: they wait for one another
  int max_splits = 0;  // of any row
  Buffer parts;        // all bits set between launches
};
// cap and unit of the index, the least split of any row, the most rows of a launch.
LatentPlan plan_latent_decode(int64_t cap, int unit, int least_split, int rows, int heads);
// Decode rows of `args.list` (one token each, several present tokens allowed). q f32 [tokens, heads, 576],
// out f32 [tokens, heads, 512], lse f32 [tokens, heads]; present k f32 [tokens, 1, 576]; 16-byte aligned
// rows. `ahead`: what is read while kernels ahead still run.
void attend_latent(const AttendArgs& args,
                   const AttentionPart& part,
                   const LatentPlan& plan,
                   DecodeAhead ahead,
                   Stream& stream);
DecodeParams latent_params(const AttendArgs& args, const AttentionPart& part);

}  // namespace se::cuda
