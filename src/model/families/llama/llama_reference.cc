#include "model/families/llama/llama_reference.h"

#include <algorithm>
#include <cmath>

#include "base/fmt.h"

namespace se::llama {

Reference::Reference(const TinyLlamaOptions& options) : o_(options) {
  for (TinyTensor& t : tiny_llama_tensors(options)) tensors_.emplace(t.name, std::move(t));
}

Reference::Vector Reference::linear(const std::string& name, const Vector& x) const {
  const TinyTensor& w = tensor(name + ".weight");
  Vector y(size_t(w.shape[0]));
  for (size_t o = 0; o < y.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += double(w.values[o * x.size() + i]) * x[i];
  }
  if (const auto bias = tensors_.find(name + ".bias"); bias != tensors_.end()) {
    for (size_t o = 0; o < y.size(); ++o) y[o] += double(bias->second.values[o]);
  }
  return y;
}

Reference::Vector Reference::norm(const std::string& name, const Vector& x) const {
  const TinyTensor& w = tensor(name + ".weight");
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double scale = 1 / std::sqrt(squares / double(x.size()) + double(1e-5f));
  Vector y(x);
  for (size_t i = 0; i < y.size(); ++i) y[i] *= scale * double(w.values[i]);
  return y;
}

void Reference::rope(Vector& heads, int64_t position) const {
  const size_t dim = size_t(o_.head_dim);
  for (size_t base = 0; base < heads.size(); base += dim) {
    for (size_t i = 0; i < dim / 2; ++i) {
      double f = std::pow(double(o_.rope_theta), -2.0 * double(i) / double(dim)) / double(o_.rope_linear);
      if (o_.rope_divisors) f /= double(tensor("rope_freqs.weight").values[i]);
      const double angle = double(float(position) * float(f));
      const double u = heads[base + 2 * i], v = heads[base + 2 * i + 1];
      heads[base + 2 * i] = u * std::cos(angle) - v * std::sin(angle);
      heads[base + 2 * i + 1] = v * std::cos(angle) + u * std::sin(angle);
    }
  }
}

Reference::Vector Reference::attention(const Vector& q,
                                       const std::vector<Vector>& keys,
                                       const std::vector<Vector>& values) const {
  const size_t dim = size_t(o_.head_dim), group = size_t(o_.q_heads / o_.kv_heads);
  Vector out(q.size());
  for (size_t h = 0; h < size_t(o_.q_heads); ++h) {
    Vector p(keys.size());
    for (size_t t = 0; t < keys.size(); ++t) {
      for (size_t d = 0; d < dim; ++d) p[t] += q[h * dim + d] * keys[t][h / group * dim + d];
      p[t] /= std::sqrt(double(dim));
    }
    const double peak = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - peak);
    for (size_t t = 0; t < keys.size(); ++t) {
      for (size_t d = 0; d < dim; ++d) out[h * dim + d] += p[t] / sum * values[t][h / group * dim + d];
    }
  }
  return out;
}

std::vector<double> Reference::forward(const std::vector<int32_t>& ids) const {
  std::vector<std::vector<Vector>> keys(size_t(o_.layers)), values(size_t(o_.layers));
  std::vector<double> logits;
  for (size_t t = 0; t < ids.size(); ++t) {
    const float* row = tensor("token_embd.weight").values.data() + int64_t(ids[t]) * o_.hidden;
    Vector x(row, row + o_.hidden);
    const auto add = [&](const Vector& y) {
      for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    };
    for (int l = 0; l < o_.layers; ++l) {
      const std::string b = format("blk.{}.", l);
      const Vector h = norm(b + "attn_norm", x);
      Vector q = linear(b + "attn_q", h), k = linear(b + "attn_k", h);
      rope(q, int64_t(t));
      rope(k, int64_t(t));
      keys[size_t(l)].push_back(std::move(k));
      values[size_t(l)].push_back(linear(b + "attn_v", h));
      add(linear(b + "attn_output", attention(q, keys[size_t(l)], values[size_t(l)])));
      const Vector m = norm(b + "ffn_norm", x);
      Vector gate = linear(b + "ffn_gate", m);
      const Vector up = linear(b + "ffn_up", m);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      add(linear(b + "ffn_down", gate));
    }
    const Vector y = linear(o_.tied ? "token_embd" : "output", norm("output_norm", x));
    logits.insert(logits.end(), y.begin(), y.end());
  }
  return logits;
}

}  // namespace se::llama
