// kernels/attention/decode_cuda.h -- paged decode attention on CUDA: one query token per row. The same
// mathematics as attend_plain (attention.h) and as the attend of the fp8 and kivi codecs: splits of
// split[row] places, one result each, merged in ascending order, the present last. A row's result never
// depends on its batch mates, the grid or the number of processors.
//
// Formats (AttentionPart as the codec lays it out):
//   BF16, F16   K/V of 64 or 128 channels; planes K, V
//   FP8         E4M3 or E5M2 of 128 channels; planes codes K, codes V, scales K, V (f32, one per token and
//   head) KIVI        4 bits, groups of 32, 128 channels; planes K codes, min (bf16), step (f16), V the same.
//   unit and
//               splits are multiples of 32, runs are whole groups
//
// Numerics: products of 16-bit pieces with f32 sums on the tensor cores. q (times scale) and the softmax
// weights are fed as two 16-bit pieces each (high and rest), so that their rounding is about 2^-17 (BF16),
// 2^-21 (the others) and not 2^-9. FP8 and KIVI codes are exact in F16. KIVI's steps are multiplied into q
// and the weights (2^-21 again), its minima meet BF16 pieces of them (2^-17), which also make up the total of
// the weights. Steps of K up to 8,188, any of V.
#pragma once
#include <cstdint>

#include "device/cuda/memory.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/decode_params_cuda.h"

namespace se::cuda {

// Host decisions, made once per batch bucket, and where splits leave their results. One launch at a time may
// use a plan, and one such kernel a device (adr/0018).
struct DecodePlan {
  int grid = 0;        // blocks: what the device holds at once, never more: they wait for one another
  int max_splits = 0;  // of any row: ceil(index.cap * unit / least split)
  Buffer parts;        // all bits set between launches
};

// The format of a part: by its planes. Aborts where CUDA has no kernel for it.
DecodeType decode_type(const AttentionPart& part);
// cap and unit of the index, the least split of any row it will see, the most entries (rows x kv_heads x
// slices).
DecodePlan plan_decode(DecodeType type, int dim, int64_t cap, int unit, int least_split, int entries);

// What attend_decode hands to its kernels, less the plan's part (splits' results, max_splits) and `ahead`.
DecodeParams decode_params(const AttendArgs& args, const AttentionPart& part);

// Decode rows (one token each, several present tokens allowed) of `args.list`; all tensors on the device.
// Needs K and V of equal shape and strides, page and unit powers of two, 16-byte aligned rows of q, present
// and out. Writes args.out and args.lse.
void attend_decode(const AttendArgs& args,
                   const AttentionPart& part,
                   const DecodePlan& plan,
                   DecodeAhead ahead,
                   Stream& stream);

}  // namespace se::cuda
