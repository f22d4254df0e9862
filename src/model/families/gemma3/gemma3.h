// model/families/gemma3/gemma3.h -- Gemma 3, text (spec/models.md 4.7): norms before and after each branch, q
// and k norms, windowed layers with a rotation of their own, an embedding scaled by sqrt(hidden), GeGLU.
// Residuals grow large (tens of thousands): they stay f32.
#pragma once
#include <memory>
#include <vector>

#include "model/blocks/attention.h"
#include "model/blocks/frame.h"
#include "model/blocks/mlp.h"
#include "model/family.h"

namespace se::gemma3 {

struct LayerWeights {
  TensorView attn_norm, attn_post_norm;  // f32 [hidden]
  AttentionWeights attention;            // norms of q and k, rotation and window are the port's: LayerKv
  TensorView ffn_norm, ffn_post_norm;    // f32 [hidden]
  MlpWeights mlp;
};

class Gemma3 final : public FramedModel {
 public:
  Gemma3(Frame frame, std::vector<LayerWeights> layers)
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

}  // namespace se::gemma3
