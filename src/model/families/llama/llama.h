// model/families/llama/llama.h -- Llama 2, 3, 3.1, 3.2, SmolLM2 and what else GGUF calls `llama`
// (spec/models.md 4.1): the plain graph that the other families vary. Rows of q and k are permuted in GGUF so
// that rotary pairs are neighbours, in safetensors they are half a head apart: RopeConfig::interleaved.
#pragma once
#include <memory>
#include <vector>

#include "model/blocks/attention.h"
#include "model/blocks/frame.h"
#include "model/blocks/mlp.h"
#include "model/family.h"

namespace se::llama {

struct LayerWeights {
  TensorView attn_norm, ffn_norm;  // f32 [hidden]
  AttentionWeights attention;      // biases in few checkpoints
  MlpWeights mlp;
};

class Llama final : public FramedModel {
 public:
  Llama(Frame frame, std::vector<LayerWeights> layers)
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

}  // namespace se::llama
