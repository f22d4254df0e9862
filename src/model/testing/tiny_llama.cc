#include "model/testing/tiny_llama.h"

#include <cmath>

#include "base/fmt.h"
#include "base/rng.h"

namespace se {
namespace {

// Tensors of one model in file order; each draws from its own stream, so that one option moves one thing.
class Maker {
 public:
  explicit Maker(const TinyLlamaOptions& o) : o_(o) {}

  void add(const std::string& name, DType dtype, std::vector<int64_t> shape, float mean, float deviation) {
    int64_t n = 1;
    for (const int64_t s : shape) n *= s;
    Rng rng(o_.seed, stream_++);
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = mean + deviation * rng.normal();
    add_values(name, dtype, std::move(shape), std::move(values));
  }
  void add_values(const std::string& name,
                  DType dtype,
                  std::vector<int64_t> shape,
                  std::vector<float> values) {
    std::string data = encode_tiny(dtype, values);
    tensors_.push_back({name, dtype, std::move(shape), std::move(values), std::move(data)});
  }
  void projection(const std::string& name, int64_t out, int64_t in, float gain) {
    const DType dtype = o_.types[next_type_++ % o_.types.size()];
    add(name + ".weight", dtype, {out, in}, 0, gain / std::sqrt(float(in)));
  }
  void bias(const std::string& name, int64_t out) {
    if (o_.biases) add(name + ".bias", DType::kF32, {out}, 0, 0.2f);
  }
  std::vector<TinyTensor> take() { return std::move(tensors_); }

 private:
  const TinyLlamaOptions& o_;
  uint64_t stream_ = 0;
  size_t next_type_ = 0;
  std::vector<TinyTensor> tensors_;
};

}  // namespace

std::vector<TinyTensor> tiny_llama_tensors(const TinyLlamaOptions& o) {
  Maker make(o);
  const int64_t q = int64_t(o.q_heads) * o.head_dim, kv = int64_t(o.kv_heads) * o.head_dim;
  make.add("token_embd.weight", o.embedding, {kTinyVocab, o.hidden}, 0, 0.3f);
  if (o.rope_divisors) {
    std::vector<float> divisors(size_t(o.head_dim / 2));
    for (size_t i = 0; i < divisors.size(); ++i) divisors[i] = 1 + 7 * float(i) / float(divisors.size());
    make.add_values("rope_freqs.weight", DType::kF32, {o.head_dim / 2}, std::move(divisors));
  }
  for (int i = 0; i < o.layers; ++i) {
    const std::string b = format("blk.{}.", i);
    make.add(b + "attn_norm.weight", DType::kF32, {o.hidden}, 1, 0.1f);
    make.projection(b + "attn_q", q, o.hidden, o.qk_gain);
    make.projection(b + "attn_k", kv, o.hidden, o.qk_gain);
    make.projection(b + "attn_v", kv, o.hidden, 1);
    make.projection(b + "attn_output", o.hidden, q, 1);
    make.bias(b + "attn_q", q);
    make.bias(b + "attn_k", kv);
    make.bias(b + "attn_v", kv);
    make.bias(b + "attn_output", o.hidden);
    make.add(b + "ffn_norm.weight", DType::kF32, {o.hidden}, 1, 0.1f);
    make.projection(b + "ffn_gate", o.ffn, o.hidden, 1);
    make.projection(b + "ffn_up", o.ffn, o.hidden, 1);
    make.projection(b + "ffn_down", o.hidden, o.ffn, 1);
  }
  make.add("output_norm.weight", DType::kF32, {o.hidden}, 1, 0.1f);
  if (!o.tied) make.projection("output", kTinyVocab, o.hidden, 2);
  return make.take();
}

GgufWriter tiny_llama(const TinyLlamaOptions& o) {
  GgufWriter w;
  w.set("general.architecture", "llama");
  w.set("general.name", "Tiny Llama");
  w.set("llama.block_count", uint32_t(o.layers));
  w.set("llama.context_length", uint32_t(o.context));
  w.set("llama.embedding_length", uint32_t(o.hidden));
  w.set("llama.feed_forward_length", uint32_t(o.ffn));
  w.set("llama.attention.head_count", uint32_t(o.q_heads));
  w.set("llama.attention.head_count_kv", uint32_t(o.kv_heads));
  w.set("llama.attention.key_length", uint32_t(o.head_dim));
  w.set("llama.attention.value_length", uint32_t(o.head_dim));
  w.set("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  w.set("llama.rope.freq_base", o.rope_theta);
  w.set("llama.rope.dimension_count", uint32_t(o.head_dim));
  if (o.rope_linear != 1) {
    w.set("llama.rope.scaling.type", "linear");
    w.set("llama.rope.scaling.factor", o.rope_linear);
  }
  set_tiny_vocab(w);
  for (TinyTensor& t : tiny_llama_tensors(o)) w.tensor(t.name, t.dtype, t.shape, std::move(t.data));
  return w;
}

Status write_tiny_llama(const std::string& path, const TinyLlamaOptions& options) {
  return tiny_llama(options).write(path);
}

}  // namespace se
