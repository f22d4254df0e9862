// model/families/qwen2/qwen2.h -- Qwen2 and Qwen2.5, dense (spec/models.md 4.2): Llama's graph with biases on
// q, k and v. They are large on k (hundreds): scores are summed in f32 whatever K is stored in.
#pragma once
#include <memory>
#include <vector>

#include "model/blocks/attention.h"
#include "model/blocks/frame.h"
#include "model/blocks/mlp.h"
#include "model/family.h"

namespace se::qwen2 {

struct LayerWeights {
  TensorView attn_norm, ffn_norm;  // f32 [hidden]
  AttentionWeights attention;      // with q, k and v biases
  MlpWeights mlp;
};

class Qwen2 final : public FramedModel {
 public:
  Qwen2(Frame frame, std::vector<LayerWeights> layers)
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

}  // namespace se::qwen2
