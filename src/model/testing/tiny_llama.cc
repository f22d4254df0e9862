#include "model/testing/tiny_llama.h"

#include <algorithm>
#include <cmath>

#include "base/fmt.h"
#include "base/half.h"
#include "base/rng.h"
#include "text/vocab.h"

namespace se {
namespace {

constexpr int64_t kBlock = 32;  // elements of Q8_0 and Q4_1

// Encodes one block and replaces its values by what the code stands for (spec/models.md 8.2).
void encode_q8_0(float* x, GgufBytes& out) {
  float peak = 0;
  for (int64_t i = 0; i < kBlock; ++i) peak = std::max(peak, std::fabs(x[i]));
  const uint16_t half = f32_to_f16(peak / 127);
  const float d = f16_to_f32(half);
  out.put(half);
  for (int64_t i = 0; i < kBlock; ++i) {
    const int8_t q = d > 0 ? int8_t(std::clamp(std::nearbyint(x[i] / d), -127.0f, 127.0f)) : int8_t(0);
    out.put(q);
    x[i] = d * float(q);
  }
}

void encode_q4_1(float* x, GgufBytes& out) {
  const auto [low, high] = std::minmax_element(x, x + kBlock);
  const uint16_t d_half = f32_to_f16((*high - *low) / 15), m_half = f32_to_f16(*low);
  const float d = f16_to_f32(d_half), m = f16_to_f32(m_half);
  uint8_t q[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) {
    q[i] = d > 0 ? uint8_t(std::clamp(std::nearbyint((x[i] - m) / d), 0.0f, 15.0f)) : uint8_t(0);
    x[i] = d * float(q[i]) + m;
  }
  out.put(d_half).put(m_half);
  for (int64_t i = 0; i < kBlock / 2; ++i) out.put(uint8_t(q[i] | q[i + kBlock / 2] << 4));
}

std::string encode(DType dtype, std::vector<float>& values) {
  GgufBytes out;
  const int64_t n = int64_t(values.size());
  if (dtype == DType::kF32) {
    for (const float v : values) out.put(v);
  } else if (dtype == DType::kF16) {
    for (float& v : values) {
      const uint16_t half = f32_to_f16(v);
      out.put(half);
      v = f16_to_f32(half);
    }
  } else {
    SE_CHECK(
        dtype == DType::kQ8_0 || dtype == DType::kQ4_1, "tiny_llama does not write {}", to_string(dtype));
    SE_CHECK(n % kBlock == 0, "{} elements are not whole blocks", n);
    for (int64_t i = 0; i < n; i += kBlock)
      (dtype == DType::kQ8_0 ? encode_q8_0 : encode_q4_1)(&values[size_t(i)], out);
  }
  return out.data();
}

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
    std::string data = encode(dtype, values);
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

std::string utf8(uint32_t code) {  // below 0x800
  if (code < 0x80) return std::string(1, char(code));
  return {char(0xc0 | code >> 6), char(0x80 | (code & 63))};
}

// The 256 byte tokens in byte order, as printable code points (spec/models.md 10.1).
std::vector<std::string> byte_tokens() {
  std::vector<std::string> out;
  uint32_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    out.push_back(utf8(printable ? b : next++));
  }
  return out;
}

#define SE_SPACE "\u0120"  // the code point that stands for a blank
const std::vector<std::string>& merges() {
  static const std::vector<std::string> kMerges = {
      "t h",         SE_SPACE " t",  SE_SPACE " a",   "h e",         "i n",         "r e",         "o n",
      "e r",         "a n",          SE_SPACE "t he", "e s",         "o r",         "e n",         "a t",
      "i s",         "o u",          "i t",           "a r",         "e d",         SE_SPACE " s", "an d",
      SE_SPACE " w", SE_SPACE " o",  "in g",          "a l",         "l l",         "i c",         "o m",
      SE_SPACE " c", "i d",          SE_SPACE " f",   "th e",        "s t",         "l e",         "v e",
      "a s",         SE_SPACE "o f", SE_SPACE " b",   SE_SPACE " p", SE_SPACE " m", "r o"};
  return kMerges;
}
#undef SE_SPACE

void set_vocab(GgufWriter& w) {
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::vector<int32_t> types(tokens.size(), int32_t(text::TokenType::kControl));
  for (const std::string& t : byte_tokens()) tokens.push_back(t);
  for (const std::string& m : merges()) {
    const size_t blank = m.find(' ');
    tokens.push_back(m.substr(0, blank) + m.substr(blank + 1));
  }
  types.resize(tokens.size(), int32_t(text::TokenType::kNormal));
  SE_CHECK(int(tokens.size()) == kTinyVocab, "{} tokens", tokens.size());
  w.set("tokenizer.ggml.model", "gpt2");
  w.set("tokenizer.ggml.pre", "gpt-2");
  w.set("tokenizer.ggml.tokens", tokens);
  w.set("tokenizer.ggml.token_type", types);
  w.set("tokenizer.ggml.merges", merges());
  w.set("tokenizer.ggml.bos_token_id", uint32_t(kTinyImStart));
  w.set("tokenizer.ggml.eos_token_id", uint32_t(kTinyImEnd));
  w.set("tokenizer.ggml.unknown_token_id", uint32_t(kTinyEndOfText));
  w.set("tokenizer.ggml.padding_token_id", uint32_t(kTinyImEnd));
  w.set("tokenizer.ggml.add_bos_token", false);
  w.set("tokenizer.ggml.add_space_prefix", false);
  w.set("tokenizer.chat_template",
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
        "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% "
        "endif %}");
}

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
  set_vocab(w);
  for (TinyTensor& t : tiny_llama_tensors(o)) w.tensor(t.name, t.dtype, t.shape, std::move(t.data));
  return w;
}

Status write_tiny_llama(const std::string& path, const TinyLlamaOptions& options) {
  return tiny_llama(options).write(path);
}

}  // namespace se
