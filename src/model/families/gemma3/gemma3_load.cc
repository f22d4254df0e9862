// From a checkpoint's hyper-parameters and tensors to a Gemma 3.
#include <cmath>

#include "base/fmt.h"
#include "model/families/gemma3/gemma3.h"

namespace se::gemma3 {
namespace {

constexpr double kTheta = 1e6, kLocalTheta = 1e4;

Status read_layer(Weights& tensors, const HyperParameters& h, int layer, LayerWeights& w, LayerKv& kv) {
  const auto norm = [&](const char* role, int64_t n) {
    return tensors.vector(format("blk.{}.{}.weight", layer, role), n);
  };
  SE_ASSIGN(w.attn_norm, norm("attn_norm", h.hidden));
  SE_ASSIGN(w.attention, read_attention(tensors, h, layer));
  SE_ASSIGN(kv.qk.q_norm, norm("attn_q_norm", h.head_dim));
  SE_ASSIGN(kv.qk.k_norm, norm("attn_k_norm", h.head_dim));
  SE_ASSIGN(w.attn_post_norm, norm("post_attention_norm", h.hidden));
  SE_ASSIGN(w.ffn_norm, norm("ffn_norm", h.hidden));
  SE_ASSIGN(w.mlp, read_mlp(tensors, layer, h.hidden, h.ffn));
  SE_ASSIGN(w.ffn_post_norm, norm("post_ffw_norm", h.hidden));
  return ok();
}

// Folders say query_pre_attn_scalar. GGUF files do not: head_dim^-1/2 but for the 27B (62 layers), whose
// scalar is hidden / q_heads.
float attention_scale(const HyperParameters& h) {
  if (h.attention_scale) return float(*h.attention_scale);
  return 1.0f / std::sqrt(h.layers == 62 ? float(h.hidden) / float(h.q_heads) : float(h.head_dim));
}

}  // namespace

Result<std::unique_ptr<Model>> load(ModelFile& file) {
  const HyperParameters& h = file.config();
  Known known;
  known.windows = true, known.activation = "gelu_tanh";
  SE_TRY(refuse_unknown(file, known));
  Weights tensors(file);
  SE_ASSIGN(Frame frame, read_frame(file, tensors, kTheta));
  frame.embed_scale = std::sqrt(float(h.hidden));
  SE_ASSIGN(const QkTransform full, read_rope(file, tensors, h.rope, kTheta));
  SE_ASSIGN(const QkTransform local, read_rope(file, tensors, h.rope_local, kLocalTheta));
  std::vector<LayerWeights> layers(size_t(h.layers));
  for (int i = 0; i < h.layers; ++i) {
    const bool windowed = h.kinds[size_t(i)] == LayerKind::kWindow;
    LayerKv kv = head_attention(h, windowed ? local : full);
    kv.scale = attention_scale(h);
    if (windowed) kv.kind = LayerKind::kWindow, kv.window = int(h.window);
    SE_TRY(read_layer(tensors, h, i, layers[size_t(i)], kv));
    frame.layers.push_back(kv);
  }
  SE_TRY(tensors.all_used());
  return std::unique_ptr<Model>(std::make_unique<Gemma3>(std::move(frame), std::move(layers)));
}

}  // namespace se::gemma3

namespace se {
namespace {
constexpr std::string_view kArchitectures[] = {"gemma3"};
}
extern const FamilyEntry family_gemma3;
const FamilyEntry family_gemma3{kArchitectures, &gemma3::load};
}  // namespace se
