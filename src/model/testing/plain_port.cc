#include "model/testing/plain_port.h"

#include <algorithm>
#include <cmath>

#include "base/half.h"

namespace se {

namespace {

// One head over its root mean square, times the weights; in double.
void plain_norm(float* x, const TensorView& weights, float eps) {
  double squares = 0;
  const int64_t dim = weights.numel();
  for (int64_t i = 0; i < dim; ++i) squares += double(x[i]) * double(x[i]);
  const double scale = 1 / std::sqrt(squares / double(dim) + double(eps));
  for (int64_t i = 0; i < dim; ++i) x[i] = float(double(x[i]) * scale * double(weights.ptr<float>()[i]));
}

double element(const TensorView& w, int64_t a, int64_t b, int64_t c) {
  if (w.dtype == DType::kF32) return double(*w.at<float>(a, b, c));
  const uint16_t bits = *w.at<uint16_t>(a, b, c);
  SE_CHECK(w.dtype == DType::kF16 || w.dtype == DType::kBF16, "plain port: {}", to_string(w));
  return double(w.dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits));
}

// w[head] c of w [heads, out, in]
void expand(const TensorView& w, int64_t head, const float* c, std::vector<float>& out) {
  for (int64_t o = 0; o < w.shape[1]; ++o) {
    double sum = 0;
    for (int64_t i = 0; i < w.shape[2]; ++i) sum += element(w, head, o, i) * double(c[i]);
    out.push_back(float(sum));
  }
}

}  // namespace

void plain_rope(float* x, int64_t position, const QkTransform& t) {
  const int64_t n = t.rope.empty() ? 0 : t.rope.numel();
  for (int64_t i = 0; i < n; ++i) {
    float& u = t.interleaved ? x[2 * i] : x[i];
    float& v = t.interleaved ? x[2 * i + 1] : x[i + n];
    const double angle = double(float(position) * t.rope.ptr<float>()[i]);
    const double c = std::cos(angle) * double(t.amplitude), s = std::sin(angle) * double(t.amplitude);
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

void PlainPort::remember(const LayerKv& shape, float* key, const float* value, Past& past) const {
  if (shape.latent()) {
    float* rope = key + shape.v_dim;
    plain_rope(rope, past.tokens, shape.qk);
    for (int64_t h = 0; h < shape.q_heads; ++h) {
      expand(shape.w_uk, h, key, past.keys);
      past.keys.insert(past.keys.end(), rope, key + shape.k_dim);
      expand(shape.w_uv, h, key, past.values);
    }
  } else {
    for (int h = 0; h < shape.kv_heads; ++h) {
      float* head = key + h * shape.k_dim;
      if (!shape.qk.k_norm.empty()) plain_norm(head, shape.qk.k_norm, shape.qk.eps);
      plain_rope(head, past.tokens, shape.qk);
    }
    past.keys.insert(past.keys.end(), key, key + int64_t(shape.kv_heads) * shape.k_dim);
    past.values.insert(past.values.end(), value, value + int64_t(shape.kv_heads) * shape.v_dim);
  }
  ++past.tokens;
}

void PlainPort::attend(int layer,
                       const TensorView& q,
                       const TensorView& k,
                       const TensorView& v,
                       const TensorView& out,
                       Stream&) {
  const LayerKv& shape = kv_.layers[size_t(layer)];
  SE_CHECK(shape.stores() && (!shape.latent() || (shape.qk.q_norm.empty() && shape.qk.k_norm.empty())));
  LayerKv heads = shape;  // as attended
  if (shape.latent())
    heads.kv_heads = shape.q_heads, heads.k_dim = shape.q_dim(), heads.v_dim = shape.out_dim();
  Past& past = past_[size_t(layer)];
  const int64_t key_row = int64_t(heads.kv_heads) * heads.k_dim,
                value_row = int64_t(heads.kv_heads) * heads.v_dim;
  SE_CHECK(q.shape[1] == int64_t(shape.q_heads) * heads.k_dim && k.shape[1] == shape.kv_heads * shape.k_dim &&
               v.empty() == shape.latent() && out.shape[1] == int64_t(shape.q_heads) * heads.v_dim,
           "plain port: q {}, k {}, v {}, out {}",
           to_string(q),
           to_string(k),
           to_string(v),
           to_string(out));
  for (int64_t t = 0; t < q.shape[0]; ++t) {
    const int64_t position = past.tokens;
    remember(shape, k.at<float>(t), v.empty() ? nullptr : v.at<float>(t), past);
    for (int h = 0; h < shape.q_heads; ++h) {
      float* head = q.at<float>(t) + h * heads.k_dim;
      if (!shape.qk.q_norm.empty()) plain_norm(head, shape.qk.q_norm, shape.qk.eps);
      plain_rope(shape.latent() ? head + shape.w_uk.shape[1] : head, position, shape.qk);
    }
    const int64_t first =
        shape.kind == LayerKind::kWindow ? std::max<int64_t>(0, past.tokens - shape.window) : 0;
    plain_attention(heads,
                    q.at<float>(t),
                    past.keys.data() + first * key_row,
                    past.values.data() + first * value_row,
                    past.tokens - first,
                    out.at<float>(t));
  }
}

}  // namespace se
