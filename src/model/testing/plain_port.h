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
  // Positions continue where the layer's last call ended. Full layers without q/k norms only.
  void attend(int layer,
              const TensorView& q,
              const TensorView& k,
              const TensorView& v,
              const TensorView& out,
              Stream& stream) override;

 private:
  struct Past {
    std::vector<float> keys, values;  // [tokens, kv_heads, dim], keys rotated
  };
  ModelKv kv_;
  std::vector<Past> past_;
};

// Rotates one head in place at a position: pairs (x[2i], x[2i + 1]) or (x[i], x[i + n]) of n frequencies; the
// angle is the f32 product, sine and cosine are double.
void plain_rope(float* x, int64_t position, const float* frequencies, int64_t n, bool interleaved);

// out [q_heads, v_dim] of one query over `keys` keys, softmax in double.
void plain_attention(
    const LayerKv& shape, const float* q, const float* keys, const float* values, int64_t tokens, float* out);

}  // namespace se
