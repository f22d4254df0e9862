// model/families/llama/llama.h -- Llama 2, 3, 3.1, 3.2, SmolLM2 and what else GGUF calls `llama`
// (spec/models.md 4.1). Goals: the graph reads top to bottom. Non-goals: mixtures of experts, sliding
// windows, YaRN (refused by name).
#pragma once
#include <memory>
#include <vector>

#include "model/family.h"
#include "model/model.h"

namespace se::llama {

// Shapes row-major; q = q_heads * head_dim, kv = kv_heads * head_dim. Rows of wq and wk are permuted in GGUF
// so that rotary pairs are neighbours, in safetensors they are half a head apart: RopeConfig::interleaved.
// Biases are empty in all but a few checkpoints.
struct LayerWeights {
  TensorView attn_norm, ffn_norm;  // f32 [hidden]
  TensorView wq, bq;               // [q, hidden], f32 [q]
  TensorView wk, bk;               // [kv, hidden], f32 [kv]
  TensorView wv, bv;               // [kv, hidden], f32 [kv]
  TensorView wo, bo;               // [hidden, q], f32 [hidden]
  TensorView gate, up;             // [ffn, hidden]
  TensorView down;                 // [hidden, ffn]
};

struct ModelWeights {
  TensorView embedding, head;  // [vocab, hidden]; one tensor when tied
  TensorView norm;             // f32 [hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> rope;  // inverse frequencies, scaling and divisors applied
};

// Immutable; any thread may call, each with its own stream and arena.
class Llama final : public Model {
 public:
  Llama(ModelShape shape, ModelWeights weights, bool interleaved);
  const ModelShape& shape() const override { return shape_; }
  ModelKv kv(Compute compute) const override;
  void embed(std::span<const int32_t> ids, const TensorView& x, Stream& stream) const override;
  void layer(int layer,
             const TensorView& x,
             AttentionPort& port,
             Compute compute,
             Arena& scratch,
             Stream& stream) const override;
  void head(const TensorView& x,
            const TensorView& logits,
            Compute compute,
            Arena& scratch,
            Stream& stream) const override;

 private:
  ModelShape shape_;
  ModelWeights weights_;  // views into the file
  bool interleaved_;
};

// Reads the keys and checks every tensor; errors are one line (see load_checkpoint).
Result<std::unique_ptr<Model>> load(ModelFile& file);

}  // namespace se::llama
