// From a checkpoint's hyper-parameters and tensors to a Qwen2.
#include "base/fmt.h"
#include "model/families/qwen2/qwen2.h"

namespace se::qwen2 {
namespace {

constexpr double kTheta = 1e6;

Result<LayerWeights> read_layer(Weights& tensors, const HyperParameters& h, int layer) {
  const auto norm = [&](const char* role) {
    return tensors.vector(format("blk.{}.{}.weight", layer, role), h.hidden);
  };
  LayerWeights w;
  SE_ASSIGN(w.attn_norm, norm("attn_norm"));
  SE_ASSIGN(w.attention, read_attention(tensors, h, layer, QkvBias::kNeeded));
  SE_ASSIGN(w.ffn_norm, norm("ffn_norm"));
  SE_ASSIGN(w.mlp, read_mlp(tensors, layer, h.hidden, h.ffn));
  return w;
}

}  // namespace

Result<std::unique_ptr<Model>> load(ModelFile& file) {
  const HyperParameters& h = file.config();
  SE_TRY(refuse_unknown(file, Known{}));
  Weights tensors(file);
  SE_ASSIGN(Frame frame, read_frame(file, tensors, kTheta));
  SE_ASSIGN(const QkTransform qk, read_rope(file, tensors, h.rope, kTheta));
  frame.layers.assign(size_t(h.layers), head_attention(h, qk));
  std::vector<LayerWeights> layers;
  for (int i = 0; i < h.layers; ++i) {
    SE_ASSIGN(LayerWeights w, read_layer(tensors, h, i));
    layers.push_back(std::move(w));
  }
  SE_TRY(tensors.all_used());
  return std::unique_ptr<Model>(std::make_unique<Qwen2>(std::move(frame), std::move(layers)));
}

}  // namespace se::qwen2

namespace se {
namespace {
constexpr std::string_view kArchitectures[] = {"qwen2"};
}
extern const FamilyEntry family_qwen2;
const FamilyEntry family_qwen2{kArchitectures, &qwen2::load};
}  // namespace se
