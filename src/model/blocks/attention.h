// model/blocks/attention.h -- the attention branch of grouped-query decoders: projections around the port.
#pragma once
#include "kernels/rope/rope_scaling.h"
#include "model/blocks/work.h"
#include "model/model.h"
#include "model/weights.h"

namespace se {

// Shapes row-major; q = q_heads * head_dim, kv = kv_heads * head_dim. Empty biases: none.
struct AttentionWeights {
  Weight q, k, v, o;                          // [q, hidden], [kv, hidden] twice, [hidden, q]
  TensorView q_bias, k_bias, v_bias, o_bias;  // f32 [q], [kv] twice, [hidden]
};

enum class QkvBias : uint8_t { kIfAny, kNeeded };

// Tensors of blk.LAYER; errors as Weights'.
Result<AttentionWeights> read_attention(Weights& tensors,
                                        const HyperParameters& h,
                                        int layer,
                                        QkvBias bias = QkvBias::kIfAny);

// What is done to q and k of layers with this rotation: frequencies (owned by the file), scaling, pairing. No
// norms yet. default_theta: where the file names none. Reads the divisors rope_freqs where the file has them
// and `divided` says that these layers use them.
Result<QkTransform> read_rope(
    ModelFile& file, Weights& tensors, const RopeConfig& rope, double default_theta, bool divided = true);

// A full-attention layer of ordinary heads: scale head_dim^-1/2, no norms.
LayerKv head_attention(const HyperParameters& h, const QkTransform& qk);

// out = o(attend(q h, k h, v h)); h, out f32 [tokens, hidden], out may be h.
void attention(int layer,
               const TensorView& h,
               const AttentionWeights& w,
               AttentionPort& port,
               const TensorView& out,
               const Work& work);

}  // namespace se
