#include "model/blocks/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/fmt.h"

namespace se {
namespace {

RopeParameters parameters(const RopeConfig& r) {
  RopeParameters p;
  switch (r.scaling) {
    case RopeScaling::kNone:
      return p;
    case RopeScaling::kLinear:
      p.kind = RopeParameters::Kind::kLinear;
      break;
    case RopeScaling::kLlama3:
      p.kind = RopeParameters::Kind::kLlama3;
      break;
    case RopeScaling::kYarn:
      p.kind = RopeParameters::Kind::kYarn;
      break;
  }
  p.factor = r.factor, p.original = double(r.original_context);
  p.low = r.low_freq_factor, p.high = r.high_freq_factor;
  p.beta_fast = r.beta_fast, p.beta_slow = r.beta_slow, p.truncate = r.truncate;
  p.attention_factor = r.attention_factor.value_or(0);
  p.mscale = r.mscale.value_or(0), p.mscale_all = r.mscale_all_dim.value_or(0);
  return p;
}

}  // namespace

Result<AttentionWeights> read_attention(Weights& tensors, const HyperParameters& h, int layer, QkvBias bias) {
  const auto name = [&](const char* role) { return format("blk.{}.{}", layer, role); };
  const auto qkv_bias = [&](const char* role, int64_t n) {
    return bias == QkvBias::kNeeded ? tensors.vector(name(role), n) : tensors.vector_if_any(name(role), n);
  };
  const int64_t q = int64_t(h.q_heads) * h.head_dim, kv = int64_t(h.kv_heads) * h.head_dim;
  AttentionWeights w;
  SE_ASSIGN(w.q, tensors.projection(name("attn_q.weight"), q, h.hidden));
  SE_ASSIGN(w.k, tensors.projection(name("attn_k.weight"), kv, h.hidden));
  SE_ASSIGN(w.v, tensors.projection(name("attn_v.weight"), kv, h.hidden));
  SE_ASSIGN(w.o, tensors.projection(name("attn_output.weight"), h.hidden, q));
  SE_ASSIGN(w.q_bias, qkv_bias("attn_q.bias", q));
  SE_ASSIGN(w.k_bias, qkv_bias("attn_k.bias", kv));
  SE_ASSIGN(w.v_bias, qkv_bias("attn_v.bias", kv));
  SE_ASSIGN(w.o_bias, tensors.vector_if_any(name("attn_output.bias"), h.hidden));
  return w;
}

Result<QkTransform> read_rope(
    ModelFile& file, Weights& tensors, const RopeConfig& r, double default_theta, bool divided) {
  const double theta = r.theta.value_or(default_theta);
  if (r.scaling == RopeScaling::kYarn) {
    if (theta <= 1) return file.refuse(format("rope.freq_base is {}, expected more than 1 with yarn", theta));
  } else if (r.attention_factor.value_or(1) != 1) {
    return file.refuse(
        format("rope.scaling.attn_factor is {}, expected 1 without yarn", *r.attention_factor));
  }
  TensorView divisors;
  if (divided) {
    SE_ASSIGN(divisors, tensors.vector_if_any("rope_freqs.weight", r.dim / 2));
  }
  for (int64_t i = 0; i < divisors.numel(); ++i) {
    if (const float d = divisors.ptr<float>()[i]; !(d > 0)) {
      return file.find("rope_freqs.weight")
          ->parts.front()
          .bad(format("has a frequency divisor {}, expected > 0", d));
    }
  }
  RopeParameters p = parameters(r);
  // In folders the factor is the amplitude, in GGUF files it multiplies that of the formula.
  const double more = file.gguf() != nullptr ? std::exchange(p.attention_factor, 0) : 0;
  const RopeTable table = rope_table(r.dim, theta, p, divisors.ptr<float>());
  const int64_t pairs = int64_t(table.frequencies.size());
  SE_ASSIGN(std::byte * owned, file.own(pairs * int64_t(sizeof(float))));
  QkTransform t;
  t.rope = TensorView::of(owned, DType::kF32, {pairs});
  std::copy(table.frequencies.begin(), table.frequencies.end(), t.rope.ptr<float>());
  t.amplitude = table.amplitude * (more > 0 ? float(more) : 1.0f), t.interleaved = r.interleaved;
  t.eps = float(file.config().norm_eps);
  return t;
}

LayerKv head_attention(const HyperParameters& h, const QkTransform& qk) {
  LayerKv layer;
  layer.q_heads = h.q_heads, layer.kv_heads = h.kv_heads;
  layer.k_dim = h.head_dim, layer.v_dim = h.v_head_dim;
  layer.scale = 1.0f / std::sqrt(float(h.head_dim));
  layer.qk = qk;
  return layer;
}

void attention(int layer,
               const TensorView& h,
               const AttentionWeights& w,
               AttentionPort& port,
               const TensorView& out,
               const Work& work) {
  const int64_t tokens = h.shape[0], q_dim = w.q.shape[0], kv_dim = w.k.shape[0];
  Arena& scratch = work.scratch;
  const Arena::Mark mark = scratch.mark();
  const TensorView q = scratch.take(DType::kF32, {tokens, q_dim});
  const TensorView k = scratch.take(DType::kF32, {tokens, kv_dim});
  const TensorView v = scratch.take(DType::kF32, {tokens, kv_dim});
  const TensorView o = scratch.take(DType::kF32, {tokens, q_dim});
  const Product qkv[] = {{w.q, w.q_bias, q}, {w.k, w.k_bias, k}, {w.v, w.v_bias, v}};
  linear(h, qkv, work.compute, scratch, work.stream);
  port.attend(layer, q, k, v, o, work.stream);
  linear(o, w.o, w.o_bias, out, work.compute, scratch, work.stream);
  scratch.rewind(mark);
}

}  // namespace se
