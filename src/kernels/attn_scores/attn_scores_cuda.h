// kernels/attn_scores/attn_scores_cuda.h -- attn_scores on CUDA, from the keys on: what part.logits and
// attn_scores do together on the CPU (the driver's score), for one row. The logits are never written: the
// keys are read twice, once for the softmax of every query and once for the votes.
//
// Numerics: products of 16-bit pieces with f32 sums on the tensor cores; q is fed as two pieces, so that its
// rounding is about 2^-17 (BF16 keys) or 2^-21 (F16). Softmax in f32. Deterministic: splits follow from the
// row's length, sums have a fixed order.
#pragma once
#include <cstdint>

#include "device/cuda/memory.h"
#include "kernels/attention/records.h"

namespace se::cuda {

class Stream;

int64_t window_scores_bytes(int64_t queries, int q_heads, int kv_heads, int64_t ordinals);  // of workspace

//   view  parts with planes[0] = K [page id, page, kv_heads, 64 or 128], bf16 or f16, all alike, 16-byte
//         aligned rows; row 0 of their indices. Rows without gaps: all runs but a part's last are full
//   q     f32 [queries, q_heads, dim], at most 256 queries; last i64 [queries]: query i sees ordinals 0 ..
//         last[i]
//   out   f32 [heads, ordinals], contiguous rows; heads and meaning as in attn_scores.h
// Everything lies on the device but spec and view themselves.
void window_scores(const ScoreSpec& spec,
                   const AttentionView& view,
                   const TensorView& q,
                   const TensorView& last,
                   float scale,
                   int kv_heads,
                   const TensorView& out,
                   Workspace& workspace,
                   Stream& stream);

}  // namespace se::cuda
