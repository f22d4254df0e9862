// model/testing/plain_port.h -- an AttentionPort for tests: one sequence, all keys and values in plain
// vectors, attention in double. It shares no code with the kernels, so a model run through it tests the graph
// and what kv() says of it.
#pragma once
#include <vector>

#include "kernels/attention/model_kv.h"

namespace se {

class PlainPort final : public AttentionPort {
 public:
  explicit PlainPort(ModelKv kv) : kv_(std::move(kv)), past_(kv_.layers.size()) {}
  // Positions continue where the layer's last call ended. Full and windowed layers, heads or latent.
  void attend(int layer,
              const TensorView& q,
              const TensorView& k,
              const TensorView& v,
              const TensorView& out,
              Stream& stream) override;

 private:
  struct Past {
    int64_t tokens = 0;
    std::vector<float> keys,
        values;  // [tokens, kv_heads, dim], keys rotated; of all query heads where latent
  };
  void remember(const LayerKv& shape, float* key, const float* value, Past& past) const;
  ModelKv kv_;
  std::vector<Past> past_;
};

// Rotates one head in place at a position, as t says; the angle is the f32 product, sine and cosine are
// double.
void plain_rope(float* x, int64_t position, const QkTransform& t);

// out [q_heads, v_dim] of one query over `keys` keys, softmax in double.
void plain_attention(
    const LayerKv& shape, const float* q, const float* keys, const float* values, int64_t tokens, float* out);

}  // namespace se
