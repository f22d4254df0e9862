// From the keys and tensors of a GGUF file (spec/models.md 9) to a Llama.
#include "base/fmt.h"
#include "kernels/rope/rope.h"
#include "model/families/llama/llama.h"
#include "model/weights.h"

namespace se::llama {
namespace {

// Variants that share the architecture's name and would run, but wrongly.
Status refuse_variants(const ModelFile& f) {
  const HyperParameters& h = f.config();
  if (h.moe.experts > 0) return f.refuse(format("expert_count is {}, expected a dense model", h.moe.experts));
  if (h.v_head_dim != h.head_dim)
    return f.refuse(format("value_length is {}, expected the key length {}", h.v_head_dim, h.head_dim));
  if (h.window > 0) return f.refuse(format("sliding_window is {}, expected none", h.window));
  if (!h.activation.empty() && h.activation != "silu")
    return f.refuse(format("the activation is {}, expected silu", h.activation));
  return ok();
}

// Inverse frequencies. llama3 scaling arrives as divisors in rope_freqs; of the scalings in keys only
// `linear` is taken.
Status read_rope(const ModelFile& f, Weights& tensors, std::vector<float>& rope) {
  const RopeConfig& r = f.config().rope;
  if (r.scaling != RopeScaling::kNone && r.scaling != RopeScaling::kLinear) {
    return f.refuse(
        format("RoPE scaling '{}' is not in this build, expected none, linear or the tensor "
               "'rope_freqs.weight'",
               r.scaling == RopeScaling::kYarn ? "yarn" : "llama3"));
  }
  if (r.attention_factor && *r.attention_factor != 1)
    return f.refuse(format("rope.scaling.attn_factor is {}, expected 1", *r.attention_factor));
  SE_ASSIGN(const TensorView divisors, tensors.vector_if_any("rope_freqs.weight", r.dim / 2));
  for (int64_t i = 0; i < divisors.numel(); ++i) {
    if (const float d = divisors.ptr<float>()[i]; !(d > 0)) {
      return f.find("rope_freqs.weight")
          ->parts.front()
          .bad(format("has a frequency divisor {}, expected > 0", d));
    }
  }
  rope = rope_frequencies(r.dim, r.theta.value_or(10000), r.factor, divisors.ptr<float>());
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

}  // namespace

Result<std::unique_ptr<Model>> load(ModelFile& file) {
  const HyperParameters& h = file.config();
  SE_TRY(refuse_variants(file));
  ModelShape shape = describe_file(file);
  shape.norm_eps = float(h.norm_eps), shape.rope_theta = h.rope.theta.value_or(10000);
  Weights tensors(file);
  shape.tied = h.tied.value_or(!tensors.has("output.weight"));
  ModelWeights weights;
  SE_ASSIGN(weights.embedding, tensors.table("token_embd.weight", shape.vocab, shape.hidden));
  SE_ASSIGN(
      weights.head,
      tensors.projection(shape.tied ? "token_embd.weight" : "output.weight", shape.vocab, shape.hidden));
  SE_ASSIGN(weights.norm, tensors.vector("output_norm.weight", shape.hidden));
  SE_TRY(read_rope(file, tensors, weights.rope));
  weights.layers.resize(size_t(shape.layers));
  for (int i = 0; i < shape.layers; ++i) SE_TRY(read_layer(shape, i, tensors, weights.layers[size_t(i)]));
  SE_TRY(tensors.all_used());
  return std::unique_ptr<Model>(
      std::make_unique<Llama>(std::move(shape), std::move(weights), h.rope.interleaved));
}

}  // namespace se::llama

namespace se {
namespace {
constexpr std::string_view kArchitectures[] = {"llama"};
}
extern const FamilyEntry family_llama;
const FamilyEntry family_llama{kArchitectures, &llama::load};
}  // namespace se
