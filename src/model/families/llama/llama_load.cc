// From a checkpoint's hyper-parameters and tensors to a Llama.
#include "base/fmt.h"
#include "model/families/llama/llama.h"

namespace se::llama {
namespace {

constexpr double kTheta = 1e4;

Result<LayerWeights> read_layer(Weights& tensors, const HyperParameters& h, int layer) {
  const auto norm = [&](const char* role) {
    return tensors.vector(format("blk.{}.{}.weight", layer, role), h.hidden);
  };
  LayerWeights w;
  SE_ASSIGN(w.attn_norm, norm("attn_norm"));
  SE_ASSIGN(w.attention, read_attention(tensors, h, layer));
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
  return std::unique_ptr<Model>(std::make_unique<Llama>(std::move(frame), std::move(layers)));
}

}  // namespace se::llama

namespace se {
namespace {
constexpr std::string_view kArchitectures[] = {"llama"};
}
extern const FamilyEntry family_llama;
const FamilyEntry family_llama{kArchitectures, &llama::load};
}  // namespace se
