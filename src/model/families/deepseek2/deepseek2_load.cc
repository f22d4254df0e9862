// From a checkpoint's hyper-parameters and tensors to a Deepseek2.
#include <cmath>

#include "base/fmt.h"
#include "kernels/rope/rope_scaling.h"
#include "model/blocks/attention.h"
#include "model/families/deepseek2/deepseek2.h"

namespace se::deepseek2 {
namespace {

constexpr double kTheta = 1e4;

Status read_attention(
    Weights& tensors, const HyperParameters& h, int layer, LatentAttention& w, LayerKv& kv) {
  const auto name = [&](const char* role) { return format("blk.{}.{}.weight", layer, role); };
  const MlaConfig& m = h.mla;
  const int64_t q_dim = int64_t(h.q_heads) * (m.nope_dim + m.rope_dim);
  if (m.q_rank > 0) {
    SE_ASSIGN(w.q_a, tensors.projection(name("attn_q_a"), m.q_rank, h.hidden));
    SE_ASSIGN(w.q_a_norm, tensors.vector(name("attn_q_a_norm"), m.q_rank));
    SE_ASSIGN(w.q, tensors.projection(name("attn_q_b"), q_dim, m.q_rank));
  } else {
    SE_ASSIGN(w.q, tensors.projection(name("attn_q"), q_dim, h.hidden));
  }
  SE_ASSIGN(w.kv_a, tensors.projection(name("attn_kv_a_mqa"), m.kv_rank + m.rope_dim, h.hidden));
  SE_ASSIGN(w.kv_a_norm, tensors.vector(name("attn_kv_a_norm"), m.kv_rank));
  w.out_dim = h.q_heads * m.v_dim;
  SE_ASSIGN(w.o, tensors.projection(name("attn_output"), h.hidden, w.out_dim));
  SE_ASSIGN(const LatentUp up, tensors.latent_up(layer, h.q_heads, m));
  kv.w_uk = up.w_uk, kv.w_uv = up.w_uv;
  return ok();
}

Status read_mlp_or_moe(Weights& tensors, const HyperParameters& h, int layer, LayerWeights& w) {
  w.sparse = h.moe.experts > 0 && h.moe.sparse[size_t(layer)];
  if (!w.sparse) {
    SE_ASSIGN(w.mlp, read_mlp(tensors, layer, h.hidden, h.ffn));
    return ok();
  }
  MoeRouting r;
  r.used = h.moe.used, r.scale = float(h.moe.scale);
  r.score = h.moe.gating.value_or(Gating::kSigmoid) == Gating::kSigmoid ? RouterScore::kSigmoid
                                                                        : RouterScore::kSoftmax;
  r.normalise = h.moe.normalise.value_or(false);
  r.groups = h.moe.groups, r.groups_used = h.moe.groups_used;
  SE_ASSIGN(w.moe, read_moe(tensors, h, layer, r));
  return ok();
}

// One latent "head" is stored. With YaRN the softmax scale grows by the square of mscale_all_dim's.
LayerKv latent_kv(const HyperParameters& h, const QkTransform& qk) {
  const MlaConfig& m = h.mla;
  LayerKv kv;
  kv.q_heads = h.q_heads, kv.kv_heads = 1;
  kv.k_dim = m.kv_rank + m.rope_dim, kv.v_dim = m.kv_rank;
  double scale = 1 / std::sqrt(double(m.nope_dim + m.rope_dim));
  if (h.rope.scaling == RopeScaling::kYarn && h.rope.mscale_all_dim) {
    const double mscale = yarn_mscale(h.rope.factor, *h.rope.mscale_all_dim);
    scale *= mscale * mscale;
  }
  kv.scale = float(scale);
  kv.qk = qk;
  return kv;
}

// Files of GGUF name one of the two mscales, since the published checkpoints have them equal.
RopeConfig rope_config(const ModelFile& file) {
  RopeConfig r = file.config().rope;
  if (file.gguf() != nullptr && !r.mscale) r.mscale = r.mscale_all_dim;
  return r;
}

}  // namespace

Result<std::unique_ptr<Model>> load(ModelFile& file) {
  const HyperParameters& h = file.config();
  Known known;
  known.experts = known.latent = true;
  SE_TRY(refuse_unknown(file, known));
  if (h.moe.groups > 1 && h.moe.gating == Gating::kSoftmax) {
    return file.refuse(format("{} groups of experts scored by softmax, expected one group", h.moe.groups));
  }
  Weights tensors(file);
  SE_ASSIGN(Frame frame, read_frame(file, tensors, kTheta));
  SE_ASSIGN(const QkTransform qk, read_rope(file, tensors, rope_config(file), kTheta));
  frame.layers.assign(size_t(h.layers), latent_kv(h, qk));
  std::vector<LayerWeights> layers(size_t(h.layers));
  for (int i = 0; i < h.layers; ++i) {
    const auto norm = [&](const char* role) {
      return tensors.vector(format("blk.{}.{}.weight", i, role), h.hidden);
    };
    LayerWeights& w = layers[size_t(i)];
    SE_ASSIGN(w.attn_norm, norm("attn_norm"));
    SE_TRY(read_attention(tensors, h, i, w.attention, frame.layers[size_t(i)]));
    SE_ASSIGN(w.ffn_norm, norm("ffn_norm"));
    SE_TRY(read_mlp_or_moe(tensors, h, i, w));
  }
  SE_TRY(tensors.all_used());
  return std::unique_ptr<Model>(std::make_unique<Deepseek2>(std::move(frame), std::move(layers)));
}

}  // namespace se::deepseek2

namespace se {
namespace {
constexpr std::string_view kArchitectures[] = {"deepseek2"};
}
extern const FamilyEntry family_deepseek2;
const FamilyEntry family_deepseek2{kArchitectures, &deepseek2::load};
}  // namespace se
