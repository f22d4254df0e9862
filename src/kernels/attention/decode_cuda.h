// kernels/attention/decode_cuda.h -- paged decode attention on CUDA: one query token per row, plain BF16 or
// F16 K/V of 64 or 128 channels. The same mathematics as attend_plain (attention.h): splits of split[row]
// places, a part result (out, lse) each, merged in ascending order, the present last. A row's result never
// depends on its batch mates, the grid or the number of processors.
//
// Numerics: products of 16-bit pieces with f32 sums on the tensor cores. q and the softmax weights are fed as
// two 16-bit pieces each (high and rest), which the padding rows of the 16-row tile take for free, so their
// rounding is about 2^-17 (BF16) and not 2^-9.
#pragma once
#include <cstdint>

#include "kernels/attention/attention.h"

namespace se::cuda {

class Stream;
class Workspace;

// Host decisions, made once per batch bucket.
struct DecodePlan {
  int grid = 0;        // blocks: what the device holds at once
  int max_splits = 0;  // of any row: ceil(index.cap * unit / least split)
};

// Everything the kernels need: plain numbers and device pointers, captured by value.
struct DecodeParams {
  const char *k = nullptr, *v = nullptr;                      // planes; strides in bytes
  int64_t page_stride = 0, item_stride = 0, head_stride = 0;  // the same for K and V
  int page_shift = 4, unit_shift = 4;
  const int64_t *runs = nullptr, *start = nullptr, *offset = nullptr;
  const int32_t* counts = nullptr;
  int row_heads = 1;
  const int32_t *ids = nullptr, *n = nullptr;  // the row list
  int cap = 0;                                 // most rows in it
  const int32_t *q_start = nullptr, *kv_from = nullptr, *split = nullptr;
  const float* q = nullptr;  // f32 [tokens, q_heads, dim]; strides in elements
  int64_t q_token = 0, q_head = 0;
  const float *new_k = nullptr, *new_v = nullptr;  // present, or null: f32 [tokens, kv_heads, dim]
  int64_t new_token = 0, new_head = 0;
  int kv_heads = 0, group = 0;  // query heads of a KV head
  float scale = 1;
  float *part_out = nullptr, *part_lse = nullptr;  // [cap * kv_heads * slices, max_splits, 8 (, dim)]
  int max_splits = 0;
  float *out = nullptr, *lse = nullptr;  // f32 [tokens, q_heads (, dim)]; strides in elements
  int64_t out_token = 0, out_head = 0, lse_token = 0, lse_head = 0;
};

enum class DecodeType : uint8_t { kBF16, kF16 };
inline constexpr int kDecodeRows = 512;                          // most rows of a launch
inline int decode_slices(int group) { return (group + 7) / 8; }  // blocks take 8 query heads at a time
int decode_grid(DecodeType type, int dim);                       // blocks the current device holds at once
void decode_attention(const DecodeParams& params, DecodeType type, int dim, int grid, Stream& stream);

// cap and unit of the index, the least split of any row it will see.
DecodePlan plan_decode(DType dtype, int dim, int64_t cap, int unit, int least_split);
int64_t decode_workspace_bytes(const DecodePlan& plan, int rows, int kv_heads, int group, int dim);

// Decode rows (one token each, several present tokens allowed) of `args.list`; all tensors on the device.
// Needs K and V of equal shape and strides, page and unit powers of two. Writes args.out and args.lse.
void attend_decode(const AttendArgs& args,
                   const AttentionPart& part,
                   const DecodePlan& plan,
                   Workspace& workspace,
                   Stream& stream);

}  // namespace se::cuda
