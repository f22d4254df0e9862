// From a checkpoint's hyper-parameters and tensors to a Qwen3.
#include "base/fmt.h"
#include "model/families/qwen3/qwen3.h"

namespace se::qwen3 {
namespace {

constexpr double kTheta = 1e6;

Status read_layer(Weights& tensors, const HyperParameters& h, int layer, LayerWeights& w, LayerKv& kv) {
  const auto norm = [&](const char* role, int64_t n) {
    return tensors.vector(format("blk.{}.{}.weight", layer, role), n);
  };
  SE_ASSIGN(w.attn_norm, norm("attn_norm", h.hidden));
  SE_ASSIGN(w.attention, read_attention(tensors, h, layer));
  SE_ASSIGN(kv.qk.q_norm, norm("attn_q_norm", h.head_dim));
  SE_ASSIGN(kv.qk.k_norm, norm("attn_k_norm", h.head_dim));
  SE_ASSIGN(w.ffn_norm, norm("ffn_norm", h.hidden));
  SE_ASSIGN(w.mlp, read_mlp(tensors, layer, h.hidden, h.ffn));
  return ok();
}

}  // namespace

Result<std::unique_ptr<Model>> load(ModelFile& file) {
  const HyperParameters& h = file.config();
  SE_TRY(refuse_unknown(file, Known{}));
  Weights tensors(file);
  SE_ASSIGN(Frame frame, read_frame(file, tensors, kTheta));
  SE_ASSIGN(const QkTransform qk, read_rope(file, tensors, h.rope, kTheta));
  frame.layers.assign(size_t(h.layers), head_attention(h, qk));
  std::vector<LayerWeights> layers(size_t(h.layers));
  for (int i = 0; i < h.layers; ++i)
    SE_TRY(read_layer(tensors, h, i, layers[size_t(i)], frame.layers[size_t(i)]));
  SE_TRY(tensors.all_used());
  return std::unique_ptr<Model>(std::make_unique<Qwen3>(std::move(frame), std::move(layers)));
}

}  // namespace se::qwen3

namespace se {
namespace {
constexpr std::string_view kArchitectures[] = {"qwen3"};
}
extern const FamilyEntry family_qwen3;
const FamilyEntry family_qwen3{kArchitectures, &qwen3::load};
}  // namespace se
