// kernels/attention/latent.h -- multi-head latent attention (DeepSeek-V2, 2024; spec/models.md 4.6): between
// the heads' space, in which the model speaks, and the latent space, in which keys are stored.
//
// A stored key is [c | r]: v_dim latent channels, which are the value too, and the rotated part that all
// heads share. w_uk [heads, nope, v_dim] and w_uv [heads, head_v, v_dim] are LayerKv's. A query head is [nope
// | rope].
//
// Absorbed: q' = [w_uk^T q_nope | q_rope] meets [c | r], and w_uv brings the output o' to head space.
// Expanded: q meets [w_uk c | r] with the value w_uv c. Both are the same sums in another order and differ by
// rounding only. Absorbed costs k_dim + v_dim products a query head and key; expanded nope + rope + head_v,
// and (nope + head_v) * v_dim more a head and key that all queries of a step share.
//
// Everything in f32. A result depends on its token and head alone: dot products sum lane d % 8 in ascending
// d, then the lanes in pairs; absorbing adds the rows of w_uk in ascending order. All tensors f32, last
// dimension contiguous, no aliases.
#pragma once
#include "kernels/attention/records.h"

namespace se {

// q [tokens, heads, nope + rope] -> out [tokens, heads, v_dim + rope].
void absorb_queries(const LayerKv& layer, const TensorView& q, const TensorView& out, Stream& stream);

// keys [n, v_dim + rope] -> k [n, heads, nope + rope], v [n, heads, head_v].
void expand_keys(
    const LayerKv& layer, const TensorView& keys, const TensorView& k, const TensorView& v, Stream& stream);

// o [tokens, heads, v_dim] -> out [tokens, heads, head_v].
void latent_outputs(const LayerKv& layer, const TensorView& o, const TensorView& out, Stream& stream);

// The number of queries of a prompt from which on it is cheaper to expand its keys; INT64_MAX: never.
int64_t expands_from(const LayerKv& layer);

namespace ref {  // one head of one token, by the formula, in double
void absorb_query(const LayerKv& layer, int head, const float* q, float* out);
void expand_key(const LayerKv& layer, int head, const float* key, float* k, float* v);
void latent_output(const LayerKv& layer, int head, const float* o, float* out);
}  // namespace ref
}  // namespace se
