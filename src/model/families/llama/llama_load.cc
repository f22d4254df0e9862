// From the keys and tensors of a GGUF file (spec/models.md 9) to a Llama.
#include "base/fmt.h"
#include "kernels/rope/rope.h"
#include "model/families/llama/llama.h"
#include "model/weights.h"

namespace se::llama {
namespace {

constexpr int64_t kMaxLayers = 4096, kMaxWidth = int64_t(1) << 24, kMaxHeads = 1 << 16;
constexpr int64_t kMaxContext = int64_t(1) << 40;

Status read_shape(const Gguf& f, ModelShape& s) {
  SE_ASSIGN(const int64_t layers, f.integer("llama.block_count", 1, kMaxLayers));
  SE_ASSIGN(const int64_t hidden, f.integer("llama.embedding_length", 1, kMaxWidth));
  SE_ASSIGN(const int64_t ffn, f.uniform_integer("llama.feed_forward_length", 1, kMaxWidth));
  SE_ASSIGN(const int64_t q_heads, f.uniform_integer("llama.attention.head_count", 1, kMaxHeads));
  SE_ASSIGN(const int64_t kv_heads,
            f.uniform_integer("llama.attention.head_count_kv", 1, kMaxHeads, q_heads));
  SE_ASSIGN(const int64_t head_dim, f.integer("llama.attention.key_length", 1, kMaxWidth, hidden / q_heads));
  SE_ASSIGN(const double eps, f.number("llama.attention.layer_norm_rms_epsilon", 0, 1));
  SE_ASSIGN(s.rope_theta, f.number("llama.rope.freq_base", 1, 1e12, 10000.0));
  SE_ASSIGN(s.context, f.integer("llama.context_length", 1, kMaxContext));
  if (q_heads % kv_heads != 0) {
    return f.bad_value("llama.attention.head_count_kv",
                       format("is {}, expected a divisor of the {} query heads", kv_heads, q_heads));
  }
  if (head_dim < 1 || (!f.has("llama.attention.key_length") && hidden % q_heads != 0)) {
    return f.bad_value("llama.attention.head_count",
                       format("is {}, expected a divisor of the embedding length {}", q_heads, hidden));
  }
  s.layers = int(layers), s.hidden = int(hidden), s.ffn = int(ffn);
  s.q_heads = int(q_heads), s.kv_heads = int(kv_heads), s.head_dim = int(head_dim);
  s.norm_eps = float(eps);
  return ok();
}

// Variants that share the architecture's name and would run, but wrongly.
Status refuse_variants(const Gguf& f, const ModelShape& s) {
  SE_ASSIGN(const int64_t experts, f.integer("llama.expert_count", 0, INT32_MAX, 0));
  if (experts > 0) {
    return unsupported(format("{}: llama.expert_count is {}, expected a dense model", f.path(), experts));
  }
  SE_ASSIGN(const int64_t v_dim, f.integer("llama.attention.value_length", 1, kMaxWidth, s.head_dim));
  if (v_dim != s.head_dim) {
    return unsupported(format(
        "{}: llama.attention.value_length is {}, expected the key length {}", f.path(), v_dim, s.head_dim));
  }
  SE_ASSIGN(const int64_t window, f.integer("llama.attention.sliding_window", 0, INT64_MAX, 0));
  if (window > 0 && window < s.context) {
    return unsupported(format("{}: llama.attention.sliding_window is {}, expected none", f.path(), window));
  }
  return ok();
}

// Inverse frequencies. llama3 scaling arrives as divisors in rope_freqs; of the scalings in keys only
// `linear` is taken.
Status read_rope(const Gguf& f, const ModelShape& s, Weights& tensors, std::vector<float>& rope) {
  SE_ASSIGN(const int64_t dim, f.integer("llama.rope.dimension_count", 2, s.head_dim, s.head_dim));
  if (dim % 2 != 0)
    return f.bad_value("llama.rope.dimension_count", format("is {}, expected an even number", dim));
  SE_ASSIGN(const std::string type, f.string("llama.rope.scaling.type", "linear"));
  SE_ASSIGN(double factor, f.number("llama.rope.scale_linear", 0, 1e9, 1.0));  // the old name of the factor
  SE_ASSIGN(factor, f.number("llama.rope.scaling.factor", 0, 1e9, factor));
  SE_ASSIGN(const double attention_factor, f.number("llama.rope.scaling.attn_factor", 0, 1e9, 1.0));
  if (type != "linear" && type != "none") {
    return unsupported(
        format("{}: RoPE scaling {} is not in this build, expected none, linear or the tensor "
               "'rope_freqs.weight'",
               f.path(),
               quoted(type)));
  }
  if (attention_factor != 1.0) {
    return unsupported(
        format("{}: llama.rope.scaling.attn_factor is {}, expected 1", f.path(), attention_factor));
  }
  if (type == "none" || factor == 0) factor = 1;  // 0: some converters' "unscaled"
  SE_ASSIGN(const TensorView divisors, tensors.vector_if_any("rope_freqs.weight", dim / 2));
  for (int64_t i = 0; i < divisors.numel(); ++i) {
    if (const float d = divisors.ptr<float>()[i]; !(d > 0)) {
      return f.bad(f.find_tensor("rope_freqs.weight")->offset,
                   format("a frequency divisor is {}, expected > 0", d));
    }
  }
  rope = rope_frequencies(int(dim), s.rope_theta, factor, divisors.ptr<float>());
  return ok();
}

Status read_layer(const ModelShape& s, int layer, Weights& tensors, LayerWeights& w) {
  const auto name = [&](const char* role) { return format("blk.{}.{}", layer, role); };
  const int64_t q = int64_t(s.q_heads) * s.head_dim, kv = int64_t(s.kv_heads) * s.head_dim;
  SE_ASSIGN(w.attn_norm, tensors.vector(name("attn_norm.weight"), s.hidden));
  SE_ASSIGN(w.wq, tensors.projection(name("attn_q.weight"), q, s.hidden));
  SE_ASSIGN(w.wk, tensors.projection(name("attn_k.weight"), kv, s.hidden));
  SE_ASSIGN(w.wv, tensors.projection(name("attn_v.weight"), kv, s.hidden));
  SE_ASSIGN(w.wo, tensors.projection(name("attn_output.weight"), s.hidden, q));
  SE_ASSIGN(w.bq, tensors.vector_if_any(name("attn_q.bias"), q));
  SE_ASSIGN(w.bk, tensors.vector_if_any(name("attn_k.bias"), kv));
  SE_ASSIGN(w.bv, tensors.vector_if_any(name("attn_v.bias"), kv));
  SE_ASSIGN(w.bo, tensors.vector_if_any(name("attn_output.bias"), s.hidden));
  SE_ASSIGN(w.ffn_norm, tensors.vector(name("ffn_norm.weight"), s.hidden));
  SE_ASSIGN(w.gate, tensors.projection(name("ffn_gate.weight"), s.ffn, s.hidden));
  SE_ASSIGN(w.up, tensors.projection(name("ffn_up.weight"), s.ffn, s.hidden));
  SE_ASSIGN(w.down, tensors.projection(name("ffn_down.weight"), s.hidden, s.ffn));
  return ok();
}

// Rows of the embedding: what the file says, else what the tensor has.
Result<int64_t> vocab_rows(const Gguf& f) {
  const GgufTensor* embedding = f.find_tensor("token_embd.weight");
  return f.integer("llama.vocab_size", 1, INT32_MAX, embedding != nullptr ? embedding->dims[1] : 1);
}

}  // namespace

Result<std::unique_ptr<Model>> load(Gguf file) {
  ModelShape shape = describe_file(file);
  SE_TRY(read_shape(file, shape));
  SE_TRY(refuse_variants(file, shape));
  SE_ASSIGN(shape.vocab, vocab_rows(file));
  Weights tensors(file);
  ModelWeights weights;
  SE_ASSIGN(weights.embedding, tensors.table("token_embd.weight", shape.vocab, shape.hidden));
  shape.tied = file.find_tensor("output.weight") == nullptr;
  SE_ASSIGN(
      weights.head,
      tensors.projection(shape.tied ? "token_embd.weight" : "output.weight", shape.vocab, shape.hidden));
  SE_ASSIGN(weights.norm, tensors.vector("output_norm.weight", shape.hidden));
  SE_TRY(read_rope(file, shape, tensors, weights.rope));
  weights.layers.resize(size_t(shape.layers));
  for (int i = 0; i < shape.layers; ++i) SE_TRY(read_layer(shape, i, tensors, weights.layers[size_t(i)]));
  SE_TRY(tensors.all_used());
  return std::unique_ptr<Model>(
      std::make_unique<Llama>(std::move(file), std::move(shape), std::move(weights)));
}

}  // namespace se::llama

namespace se {
namespace {
constexpr std::string_view kArchitectures[] = {"llama"};
}
extern const FamilyEntry family_llama;
const FamilyEntry family_llama{kArchitectures, &llama::load};
}  // namespace se
