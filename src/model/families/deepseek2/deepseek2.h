// model/families/deepseek2/deepseek2.h -- multi-head latent attention with a mixture of experts:
// GLM-4.7-Flash (glm4_moe_lite), DeepSeek-V2 and V3, which GGUF calls `deepseek2` (spec/models.md 4.6). K and
// V of all heads come from one latent per token, which is all that is cached. The port absorbs queries into
// the latent or expands it: LayerKv::w_uk, w_uv.
#pragma once
#include <memory>
#include <vector>

#include "model/blocks/frame.h"
#include "model/blocks/moe.h"
#include "model/family.h"

namespace se::deepseek2 {

// A query head is [nope | rope]; rank is that of the latent.
struct LatentAttention {
  Weight q_a;            // [q_rank, hidden]; empty: one projection
  Weight q;              // [q_heads * (nope + rope), q_rank], or of hidden
  Weight kv_a;           // [rank + rope, hidden]
  Weight o;              // [hidden, q_heads * v]
  TensorView q_a_norm;   // f32 [q_rank]
  TensorView kv_a_norm;  // f32 [rank]: of the latent, not of the rotated key
  int out_dim = 0;       // q_heads * v
};

// The norms of the latents have an eps of their own: the published code makes them with its default, whatever
// rms_norm_eps says.
inline constexpr float kLatentEps = 1e-6f;

struct LayerWeights {
  TensorView attn_norm, ffn_norm;  // f32 [hidden]
  LatentAttention attention;
  bool sparse = true;
  MoeWeights moe;  // where sparse
  MlpWeights mlp;  // else
};

class Deepseek2 final : public FramedModel {
 public:
  Deepseek2(Frame frame, std::vector<LayerWeights> layers)
      : FramedModel(std::move(frame)), layers_(std::move(layers)) {}
  void layer(int layer,
             const TensorView& x,
             AttentionPort& port,
             Compute compute,
             Arena& scratch,
             Stream& stream) const override;

 private:
  std::vector<LayerWeights> layers_;
};

// Checks what the file says and every tensor; errors are one line (see load_checkpoint).
Result<std::unique_ptr<Model>> load(ModelFile& file);

}  // namespace se::deepseek2
