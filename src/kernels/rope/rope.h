// kernels/rope/rope.h -- per-head norm and rotary embedding of queries and keys, in place
// (spec/models.md 2.3).
#pragma once
#include "kernels/attention/model_kv.h"

namespace se {

// q f32 [tokens, q_heads, dim], k f32 [tokens, kv_heads, dim] in place (any strides, heads contiguous); pos
// i32 [tokens] logical positions. RMSNorm over dim where t has weights, then rotation of the first 2 *
// t.rope.numel() channels, cos and sin times t.amplitude. The angle is f32(position) * f32(frequency), cos
// and sin in f32 (within half an ulp, the same bits on every machine), as the checkpoints were trained. At
// most 512 pairs.
void qk_norm_rope(
    const TensorView& q, const TensorView& k, const QkTransform& t, const TensorView& pos, Stream& stream);

// Inverse frequencies theta^(-2i/dim), i < dim / 2, computed in double, stored as f32: rope_table without
// scaling.
std::vector<float> rope_frequencies(int dim, double theta);

}  // namespace se
