#include "model/hf/hf_names.h"

#include <charconv>
#include <optional>

#include "base/fmt.h"

namespace se {
namespace {

constexpr std::string_view kIgnored[] = {"model.visual.",
                                         "model.vision_tower.",
                                         "model.audio_tower.",
                                         "model.embed_vision.",
                                         "model.embed_audio.",
                                         "model.multi_modal_projector.",
                                         "visual.",
                                         "vision_tower.",
                                         "audio_tower.",
                                         "multi_modal_projector.",
                                         "mtp."};
constexpr std::string_view kPrefixes[] = {"model.language_model.", "language_model.model.", "model."};

struct Role {
  std::string_view hf, gguf;
};
constexpr Role kGlobal[] = {{"embed_tokens.weight", "token_embd.weight"},
                            {"norm.weight", "output_norm.weight"}};
constexpr Role kHeads[] = {{"lm_head.weight", "output.weight"},
                           {"language_model.lm_head.weight", "output.weight"}};
// Of a layer, without .weight or .bias.
constexpr Role kLayer[] = {{"input_layernorm", "attn_norm"},
                           {"self_attn.q_proj", "attn_q"},
                           {"self_attn.k_proj", "attn_k"},
                           {"self_attn.v_proj", "attn_v"},
                           {"self_attn.o_proj", "attn_output"},
                           {"self_attn.q_norm", "attn_q_norm"},
                           {"self_attn.k_norm", "attn_k_norm"},
                           {"self_attn.q_a_proj", "attn_q_a"},
                           {"self_attn.q_a_layernorm", "attn_q_a_norm"},
                           {"self_attn.q_b_proj", "attn_q_b"},
                           {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
                           {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
                           {"self_attn.kv_b_proj", "attn_kv_b"},
                           {"mlp.gate_proj", "ffn_gate"},
                           {"mlp.up_proj", "ffn_up"},
                           {"mlp.down_proj", "ffn_down"},
                           {"mlp.gate", "ffn_gate_inp"},
                           {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
                           {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
                           {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
                           {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
                           {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
                           {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
                           {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"}};
// Gemma's second norm follows attention, everyone else's precedes the MLP.
constexpr Role kNorms[] = {{"post_attention_layernorm", "ffn_norm"}};
constexpr Role kGemmaNorms[] = {{"post_attention_layernorm", "post_attention_norm"},
                                {"pre_feedforward_layernorm", "ffn_norm"},
                                {"post_feedforward_layernorm", "post_ffw_norm"}};

template <size_t n>
std::string_view find(const Role (&roles)[n], std::string_view hf) {
  for (const Role& role : roles) {
    if (role.hf == hf) return role.gguf;
  }
  return {};
}

// The number that `text` begins with, before a dot; both are cut off.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || n < 0 || end == text.data() + text.size() || *end != '.') return {};
  text.remove_prefix(size_t(end - text.data()) + 1);
  return n;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// mlp.experts. has been cut off.
bool translate_experts(std::string_view rest, const std::string& block, HfName& out) {
  if (rest == "gate_up_proj" || rest == "down_proj") {
    out.gate_up = rest == "gate_up_proj";
    out.name = block + (out.gate_up ? "" : "ffn_down_exps.weight");
    return true;
  }
  const auto expert = take_number(rest);
  const std::string_view role = rest == "gate_proj.weight" ? "ffn_gate_exps.weight"
                                : rest == "up_proj.weight" ? "ffn_up_exps.weight"
                                                           : "ffn_down_exps.weight";
  if (!expert || (role == "ffn_down_exps.weight" && rest != "down_proj.weight")) return false;
  out.name = block + std::string(role), out.expert = *expert;
  return true;
}

bool translate_layer(std::string_view rest,
                     const std::string& block,
                     const HyperParameters& config,
                     HfName& out) {
  if (rest == "mlp.gate.e_score_correction_bias") {
    out.name = block + "exp_probs_b.bias";
    return true;
  }
  if (take_prefix(rest, "mlp.experts.")) return translate_experts(rest, block, out);
  const size_t dot = rest.rfind('.');
  if (dot == std::string_view::npos) return false;
  const std::string_view role = rest.substr(0, dot), kind = rest.substr(dot);
  if (kind != ".weight" && kind != ".bias") return false;
  std::string_view name = find(kLayer, role);
  if (name.empty()) name = config.architecture == "gemma3" ? find(kGemmaNorms, role) : find(kNorms, role);
  if (name.empty()) return false;
  out.name = block + std::string(name) + std::string(kind);
  return true;
}

}  // namespace

HfName translate(std::string_view name, const HyperParameters& config) {
  HfName out;
  out.name = name;
  for (const std::string_view prefix : kIgnored) out.ignored |= name.starts_with(prefix);
  out.ignored |=
      name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".k_scale") || name.ends_with(".v_scale");
  if (out.ignored) return out;
  if (const std::string_view head = find(kHeads, name); !head.empty()) {
    out.name = head;
    return out;
  }
  std::string_view rest = name;
  bool known = false;
  for (size_t i = 0; i < std::size(kPrefixes) && !known; ++i) known = take_prefix(rest, kPrefixes[i]);
  if (!known) return out;
  if (const std::string_view global = find(kGlobal, rest); !global.empty()) out.name = global;
  std::string_view in_layer = rest;
  if (take_prefix(in_layer, "layers.")) {
    const auto layer = take_number(in_layer);
    if (!layer) return out;
    out.ignored = *layer >= config.layers && *layer < config.layers + config.extra_layers;
    translate_layer(in_layer, format("blk.{}.", *layer), config, out);
  }
  out.minus_one = config.architecture == "gemma3" && out.name.ends_with("norm.weight");
  return out;
}

}  // namespace se
