// From the names and layouts of the hub to those of GGUF: what llama.cpp's converter does (spec/models.md 9).
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>

#include "base/check.h"
#include "base/fmt.h"
#include "model/testing/tiny_checkpoint.h"

namespace se {
namespace {

using Json = nlohmann::json;

std::string architecture(const std::string& model_type) {
  static const std::map<std::string, std::string> kOf = {{"llama", "llama"},
                                                         {"qwen2", "qwen2"},
                                                         {"qwen3", "qwen3"},
                                                         {"qwen3_moe", "qwen3moe"},
                                                         {"gemma3_text", "gemma3"},
                                                         {"glm4_moe_lite", "deepseek2"}};
  return kOf.at(model_type);
}

class Converter {
 public:
  Converter(const TinyCheckpoint& from, DType dtype)
      : from_(from), dtype_(dtype), c_(Json::parse(from.config)), arch_(architecture(c_.at("model_type"))) {}

  GgufWriter run() {
    w_.set("general.architecture", arch_);
    w_.set("general.name", "Tiny " + from_.name);
    sizes();
    rope();
    if (arch_ == "qwen3moe" || arch_ == "deepseek2") experts();
    if (arch_ == "deepseek2") latent();
    if (arch_ == "gemma3") integer("attention.sliding_window", "sliding_window");
    set_tiny_vocab(w_);
    for (const TinyTensor& t : from_.tensors) tensor(t);
    for (auto& [name, t] : stacks_) put(name, {t.count, t.shape[0], t.shape[1]}, std::move(t.values));
    return std::move(w_);
  }

 private:
  struct Stack {
    int64_t count = 0;
    std::vector<int64_t> shape;
    std::vector<float> values;
  };

  std::string key(const char* name) const { return arch_ + "." + name; }
  void set(const char* name, int64_t value) { w_.set(key(name), uint32_t(value)); }
  void integer(const char* name, const char* field) { set(name, c_.at(field).get<int64_t>()); }

  void sizes() {
    integer("block_count", "num_hidden_layers");
    integer("context_length", "max_position_embeddings");
    integer("embedding_length", "hidden_size");
    integer("feed_forward_length", "intermediate_size");
    integer("attention.head_count", "num_attention_heads");
    w_.set(key("attention.layer_norm_rms_epsilon"), c_.at("rms_norm_eps").get<float>());
    set("vocab_size", kTinyVocab);
    if (arch_ == "deepseek2") return;
    integer("attention.head_count_kv", "num_key_value_heads");
    integer("attention.key_length", "head_dim");
    integer("attention.value_length", "head_dim");
    integer("rope.dimension_count", "head_dim");
  }

  // Gemma files carry the rotation of full layers; that of the others is implied.
  void rope() {
    Json r = c_.at("rope_parameters");
    if (r.contains("full_attention")) r = r.at("full_attention");
    w_.set(key("rope.freq_base"), r.at("rope_theta").get<float>());
    const std::string type = r.at("rope_type");
    if (type == "llama3") return divisors(r);
    if (type == "default") return;
    w_.set(key("rope.scaling.type"), type);
    w_.set(key("rope.scaling.factor"), r.at("factor").get<float>());
    if (type != "yarn") return;
    set("rope.scaling.original_context_length", r.at("original_max_position_embeddings").get<int64_t>());
    if (r.contains("attention_factor")) {  // in files of the formula's
      const double formula = 0.1 * std::log(r.at("factor").get<double>()) + 1;
      w_.set(key("rope.scaling.attn_factor"), float(r.at("attention_factor").get<double>() / formula));
    }
    if (r.contains("mscale_all_dim"))
      w_.set(key("rope.scaling.yarn_log_multiplier"), 0.1f * r.at("mscale_all_dim").get<float>());
  }

  void divisors(const Json& r) {
    const double dim = c_.at("head_dim"), factor = r.at("factor"), low = r.at("low_freq_factor"),
                 high = r.at("high_freq_factor"), old = r.at("original_max_position_embeddings"),
                 theta = r.at("rope_theta");
    std::vector<float> out;
    for (int i = 0; i < int(dim) / 2; ++i) {
      const double turns = old * std::pow(theta, -2 * i / dim) / (2 * std::numbers::pi);
      const double smooth = (turns - low) / (high - low);
      out.push_back(turns > high  ? 1.0f
                    : turns < low ? float(factor)
                                  : float(1 / ((1 - smooth) / factor + smooth)));
    }
    const int64_t n = int64_t(out.size());
    put("rope_freqs.weight", {n}, std::move(out));
  }

  void experts() {
    const bool glm = arch_ == "deepseek2";
    integer("expert_count", glm ? "n_routed_experts" : "num_experts");
    integer("expert_used_count", "num_experts_per_tok");
    integer("expert_feed_forward_length", "moe_intermediate_size");
    w_.set(key("expert_weights_norm"), c_.at("norm_topk_prob").get<bool>());
    if (!glm) return;
    integer("expert_shared_count", "n_shared_experts");
    w_.set(key("expert_weights_scale"), c_.at("routed_scaling_factor").get<float>());
    set("expert_gating_func", 2);
    integer("expert_group_count", "n_group");
    integer("expert_group_used_count", "topk_group");
    int64_t dense = 0;
    for (const auto& type : c_.at("mlp_layer_types")) dense += type == "dense";
    set("leading_dense_block_count", dense);
  }

  // As one key head that all query heads share: its cached width.
  void latent() {
    const int64_t rank = c_.at("kv_lora_rank"), rope = c_.at("qk_rope_head_dim"),
                  nope = c_.at("qk_nope_head_dim");
    set("attention.head_count_kv", 1);
    set("attention.key_length", rank + rope);
    set("attention.value_length", rank);
    set("attention.key_length_mla", nope + rope);
    integer("attention.value_length_mla", "v_head_dim");
    integer("attention.q_lora_rank", "q_lora_rank");
    set("attention.kv_lora_rank", rank);
    set("rope.dimension_count", rope);
  }

  void put(const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    DType dtype = DType::kF32;
    const bool matrix = shape.size() > 1 && name.find("gate_inp") == std::string::npos;
    if (matrix) dtype = shape.back() % block_elements(dtype_) == 0 ? dtype_ : DType::kF16;
    std::string data = encode_tiny(dtype, values);
    w_.tensor(name, dtype, std::move(shape), std::move(data));
  }

  void tensor(const TinyTensor& t) {
    if (t.name == "model.embed_tokens.weight") return put("token_embd.weight", t.shape, t.values);
    if (t.name == "lm_head.weight") return put("output.weight", t.shape, t.values);
    if (t.name == "model.norm.weight") return put("output_norm.weight", t.shape, norm(t.values));
    constexpr std::string_view kLayers = "model.layers.";
    SE_CHECK(t.name.starts_with(kLayers), "no place for {}", t.name);
    const size_t dot = t.name.find('.', kLayers.size());
    layer_tensor(
        "blk." + t.name.substr(kLayers.size(), dot - kLayers.size()) + ".", t.name.substr(dot + 1), t);
  }

  std::vector<float> norm(std::vector<float> values) const {
    if (arch_ == "gemma3") {
      for (float& v : values) v += 1;
    }
    return values;
  }

  void layer_tensor(const std::string& block, const std::string& role, const TinyTensor& t) {
    static const std::map<std::string, std::string> kRoles = {
        {"input_layernorm", "attn_norm"},
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
        {"pre_feedforward_layernorm", "ffn_norm"},
        {"post_feedforward_layernorm", "post_ffw_norm"},
        {"mlp.gate_proj", "ffn_gate"},
        {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},
        {"mlp.gate", "ffn_gate_inp"},
        {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
        {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
        {"mlp.shared_experts.down_proj", "ffn_down_shexp"}};
    if (role == "mlp.gate.e_score_correction_bias") return put(block + "exp_probs_b.bias", t.shape, t.values);
    const size_t dot = role.rfind('.');
    const std::string stem = role.substr(0, dot), kind = role.substr(dot);  // ".weight", ".bias"
    if (stem == "self_attn.kv_b_proj") return split_up(block, t);
    if (stem.starts_with("mlp.experts.")) return stack(block, stem, t);
    if (stem == "post_attention_layernorm")
      return put(
          block + (arch_ == "gemma3" ? "post_attention_norm" : "ffn_norm") + kind, t.shape, norm(t.values));
    std::vector<float> values = stem.ends_with("norm") ? norm(t.values) : t.values;
    if (arch_ == "llama" && (stem == "self_attn.q_proj" || stem == "self_attn.k_proj"))
      values = neighbours(values, int64_t(t.values.size()) / t.shape[0], t.shape[0]);
    put(block + kRoles.at(stem) + kind, t.shape, std::move(values));
  }

  // Rows of each head so that rotary pairs lie beside each other: row 2i + s was row s * dim / 2 + i.
  std::vector<float> neighbours(const std::vector<float>& rows, int64_t width, int64_t count) const {
    const int64_t dim = c_.at("head_dim");
    std::vector<float> out(rows.size());
    for (int64_t r = 0; r < count; ++r) {
      const int64_t in_head = r % dim, from = r - in_head + in_head % 2 * (dim / 2) + in_head / 2;
      std::copy_n(rows.begin() + from * width, width, out.begin() + r * width);
    }
    return out;
  }

  // kv_b_proj [heads * (nope + v), rank] as attn_k_b [heads, rank, nope] (transposed) and attn_v_b [heads, v,
  // rank].
  void split_up(const std::string& block, const TinyTensor& t) {
    const int64_t heads = c_.at("num_attention_heads"), nope = c_.at("qk_nope_head_dim"),
                  v = c_.at("v_head_dim"), rank = c_.at("kv_lora_rank");
    std::vector<float> k_b(size_t(heads * rank * nope)), v_b;
    for (int64_t h = 0; h < heads; ++h) {
      const float* head = t.values.data() + h * (nope + v) * rank;
      for (int64_t o = 0; o < nope; ++o) {
        for (int64_t r = 0; r < rank; ++r) k_b[size_t((h * rank + r) * nope + o)] = head[o * rank + r];
      }
      v_b.insert(v_b.end(), head + nope * rank, head + (nope + v) * rank);
    }
    put(block + "attn_k_b.weight", {heads, rank, nope}, std::move(k_b));
    put(block + "attn_v_b.weight", {heads, v, rank}, std::move(v_b));
  }

  void stack(const std::string& block, const std::string& stem, const TinyTensor& t) {
    const std::string role = stem.substr(stem.rfind('.') + 1);  // gate_proj
    const std::string name = block + "ffn_" + role.substr(0, role.find('_')) + "_exps.weight";
    Stack& s = stacks_[name];
    const int64_t index = std::stoll(stem.substr(std::string("mlp.experts.").size()));
    const size_t size = t.values.size();
    s.shape = t.shape, s.count = std::max(s.count, index + 1);
    s.values.resize(std::max(s.values.size(), size_t(index + 1) * size));
    std::copy(t.values.begin(), t.values.end(), s.values.begin() + index * int64_t(size));
  }

  const TinyCheckpoint& from_;
  DType dtype_;
  Json c_;
  std::string arch_;
  GgufWriter w_;
  std::map<std::string, Stack> stacks_;
};

}  // namespace

GgufWriter TinyCheckpoint::gguf(DType dtype) const { return Converter(*this, dtype).run(); }

}  // namespace se
