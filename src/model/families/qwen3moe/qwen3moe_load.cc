// From a checkpoint's hyper-parameters and tensors to a Qwen3-MoE.
#include "base/fmt.h"
#include "model/families/qwen3moe/qwen3moe.h"

namespace se::qwen3moe {
namespace {

constexpr double kTheta = 1e6;

// Folders say which layers are dense, GGUF files show it.
bool is_sparse(const ModelFile& file, int layer) {
  if (file.gguf() != nullptr) return file.find(format("blk.{}.ffn_gate.weight", layer)) == nullptr;
  return file.config().moe.sparse[size_t(layer)];
}

Status read_layer(const ModelFile& file, Weights& tensors, int layer, LayerWeights& w, LayerKv& kv) {
  const HyperParameters& h = file.config();
  const auto norm = [&](const char* role, int64_t n) {
    return tensors.vector(format("blk.{}.{}.weight", layer, role), n);
  };
  SE_ASSIGN(w.attn_norm, norm("attn_norm", h.hidden));
  SE_ASSIGN(w.attention, read_attention(tensors, h, layer));
  SE_ASSIGN(kv.qk.q_norm, norm("attn_q_norm", h.head_dim));
  SE_ASSIGN(kv.qk.k_norm, norm("attn_k_norm", h.head_dim));
  SE_ASSIGN(w.ffn_norm, norm("ffn_norm", h.hidden));
  w.sparse = is_sparse(file, layer);
  if (!w.sparse) {
    SE_ASSIGN(w.mlp, read_mlp(tensors, layer, h.hidden, h.ffn));
    return ok();
  }
  // GGUF files do not say; the published models renormalise.
  const MoeRouting routing{
      h.moe.used, RouterScore::kSoftmax, h.moe.normalise.value_or(true), float(h.moe.scale)};
  SE_ASSIGN(w.moe, read_moe(tensors, h, layer, routing));
  return ok();
}

}  // namespace

Result<std::unique_ptr<Model>> load(ModelFile& file) {
  const HyperParameters& h = file.config();
  Known known;
  known.experts = true;
  SE_TRY(refuse_unknown(file, known));
  if (h.moe.gating.value_or(Gating::kSoftmax) != Gating::kSoftmax || h.moe.groups > 1 || h.moe.shared > 0)
    return file.refuse("expected a router by softmax, no groups and no shared expert in a Qwen3-MoE");
  Weights tensors(file);
  SE_ASSIGN(Frame frame, read_frame(file, tensors, kTheta));
  SE_ASSIGN(const QkTransform qk, read_rope(file, tensors, h.rope, kTheta));
  frame.layers.assign(size_t(h.layers), head_attention(h, qk));
  std::vector<LayerWeights> layers(size_t(h.layers));
  for (int i = 0; i < h.layers; ++i)
    SE_TRY(read_layer(file, tensors, i, layers[size_t(i)], frame.layers[size_t(i)]));
  SE_TRY(tensors.all_used());
  return std::unique_ptr<Model>(std::make_unique<Qwen3Moe>(std::move(frame), std::move(layers)));
}

}  // namespace se::qwen3moe

namespace se {
namespace {
constexpr std::string_view kArchitectures[] = {"qwen3moe"};
}
extern const FamilyEntry family_qwen3moe;
const FamilyEntry family_qwen3moe{kArchitectures, &qwen3moe::load};
}  // namespace se
