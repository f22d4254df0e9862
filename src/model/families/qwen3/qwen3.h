// model/families/qwen3/qwen3.h -- Qwen3, dense (spec/models.md 4.3): Llama's graph with a norm over every q
// and k head, and a head size of its own (q_heads * head_dim need not be hidden).
#pragma once
#include <memory>
#include <vector>

#include "model/blocks/attention.h"
#include "model/blocks/frame.h"
#include "model/blocks/mlp.h"
#include "model/family.h"

namespace se::qwen3 {

struct LayerWeights {
  TensorView attn_norm, ffn_norm;  // f32 [hidden]
  AttentionWeights attention;      // the norms of q and k are the port's: LayerKv::qk
  MlpWeights mlp;
};

class Qwen3 final : public FramedModel {
 public:
  Qwen3(Frame frame, std::vector<LayerWeights> layers)
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

}  // namespace se::qwen3
