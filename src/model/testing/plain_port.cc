#include "model/testing/plain_port.h"

#include <algorithm>
#include <cmath>

namespace se {

void plain_rope(float* x, int64_t position, const float* frequencies, int64_t n, bool interleaved) {
  for (int64_t i = 0; i < n; ++i) {
    float& u = interleaved ? x[2 * i] : x[i];
    float& v = interleaved ? x[2 * i + 1] : x[i + n];
    const double angle = double(float(position) * frequencies[i]), c = std::cos(angle), s = std::sin(angle);
    const double u0 = double(u), v0 = double(v);
    u = float(u0 * c - v0 * s);
    v = float(v0 * c + u0 * s);
  }
}

void plain_attention(const LayerKv& shape,
                     const float* q,
                     const float* keys,
                     const float* values,
                     int64_t tokens,
                     float* out) {
  const int64_t group = shape.q_heads / shape.kv_heads;
  std::vector<double> p(static_cast<size_t>(tokens));
  for (int64_t h = 0; h < shape.q_heads; ++h) {
    const int64_t kv_head = h / group;
    for (int64_t t = 0; t < tokens; ++t) {
      const float* key = keys + (t * shape.kv_heads + kv_head) * shape.k_dim;
      double dot = 0;
      for (int64_t d = 0; d < shape.k_dim; ++d) dot += double(q[h * shape.k_dim + d]) * double(key[d]);
      p[size_t(t)] = dot * double(shape.scale);
    }
    const double peak = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - peak);
    for (int64_t d = 0; d < shape.v_dim; ++d) {
      double value = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        value += p[size_t(t)] * double(values[(t * shape.kv_heads + kv_head) * shape.v_dim + d]);
      }
      out[h * shape.v_dim + d] = float(value / sum);
    }
  }
}

void PlainPort::attend(int layer,
                       const TensorView& q,
                       const TensorView& k,
                       const TensorView& v,
                       const TensorView& out,
                       Stream&) {
  const LayerKv& shape = kv_.layers[size_t(layer)];
  SE_CHECK(shape.kind == LayerKind::kFull && shape.qk.q_norm.empty() && shape.qk.k_norm.empty());
  const TensorView& rope = shape.qk.rope;
  Past& past = past_[size_t(layer)];
  const int64_t k_row = int64_t(shape.kv_heads) * shape.k_dim, v_row = int64_t(shape.kv_heads) * shape.v_dim;
  const int64_t q_row = int64_t(shape.q_heads) * shape.k_dim, o_row = int64_t(shape.q_heads) * shape.v_dim;
  SE_CHECK(q.shape[1] == q_row && k.shape[1] == k_row && v.shape[1] == v_row && out.shape[1] == o_row);
  for (int64_t t = 0; t < q.shape[0]; ++t) {
    const int64_t position = int64_t(past.keys.size()) / k_row;
    float* query = q.ptr<float>() + t * q_row;
    float* key = k.ptr<float>() + t * k_row;
    const float* value = v.ptr<float>() + t * v_row;
    const auto rotate = [&](float* head) {
      plain_rope(head, position, rope.ptr<float>(), rope.numel(), shape.qk.interleaved);
    };
    for (int h = 0; h < shape.q_heads; ++h) rotate(query + h * shape.k_dim);
    for (int h = 0; h < shape.kv_heads; ++h) rotate(key + h * shape.k_dim);
    past.keys.insert(past.keys.end(), key, key + k_row);
    past.values.insert(past.values.end(), value, value + v_row);
    plain_attention(
        shape, query, past.keys.data(), past.values.data(), position + 1, out.ptr<float>() + t * o_row);
  }
}

}  // namespace se
