// model/families/qwen3moe/qwen3moe.h -- Qwen3-MoE (spec/models.md 4.4): Qwen3's attention, a mixture of
// experts in place of the MLP of most layers.
#pragma once
#include <memory>
#include <vector>

#include "model/blocks/attention.h"
#include "model/blocks/frame.h"
#include "model/blocks/moe.h"
#include "model/family.h"

namespace se::qwen3moe {

struct LayerWeights {
  TensorView attn_norm, ffn_norm;  // f32 [hidden]
  AttentionWeights attention;      // the norms of q and k are the port's: LayerKv::qk
  bool sparse = true;
  MoeWeights moe;  // where sparse
  MlpWeights mlp;  // else
};

class Qwen3Moe final : public FramedModel {
 public:
  Qwen3Moe(Frame frame, std::vector<LayerWeights> layers)
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

}  // namespace se::qwen3moe
