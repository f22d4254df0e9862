#include "model/hf/hf_config.h"

#include <algorithm>
#include <cmath>

#include "base/fmt.h"
#include "base/quoted.h"
#include "model/gguf.h"
#include "model/hf/hf_rope.h"

namespace se {
namespace {

constexpr int64_t kMaxLayers = 4096, kMaxWidth = int64_t(1) << 24, kMaxHeads = 1 << 16;
constexpr int64_t kMaxExperts = 1 << 16, kMaxContext = int64_t(1) << 40;

struct Architecture {
  const char *model_type, *name;
};
constexpr Architecture kArchitectures[] = {{"llama", "llama"},
                                           {"qwen2", "qwen2"},
                                           {"qwen3", "qwen3"},
                                           {"qwen3_moe", "qwen3moe"},
                                           {"gemma3_text", "gemma3"},
                                           {"glm4_moe_lite", "deepseek2"},
                                           {"deepseek_v3", "deepseek2"}};

// The first of several spellings that is there; the first of all if none is.
const char* spelling(const JsonObject& c, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (c.has(name)) return name;
  }
  return *names.begin();
}

Status read_int(const JsonObject& c,
                const char* key,
                int64_t min,
                int64_t max,
                std::optional<int64_t> fallback,
                int& out) {
  SE_ASSIGN(const int64_t value, c.integer(key, min, max, fallback));
  out = int(value);
  return ok();
}

Status read_size(const JsonObject& c, HyperParameters& h) {
  SE_TRY(read_int(c, "num_hidden_layers", 1, kMaxLayers, {}, h.layers));
  SE_TRY(read_int(c, "num_nextn_predict_layers", 0, kMaxLayers, 0, h.extra_layers));
  SE_TRY(read_int(c, "hidden_size", 1, kMaxWidth, {}, h.hidden));
  SE_TRY(read_int(c, "intermediate_size", 0, kMaxWidth, 0, h.ffn));
  SE_ASSIGN(h.vocab, c.integer("vocab_size", 1, INT32_MAX));
  SE_ASSIGN(h.context, c.integer("max_position_embeddings", 1, kMaxContext));
  SE_ASSIGN(h.norm_eps, c.number("rms_norm_eps", 0, 1, 1e-6));
  return ok();
}

Status read_activation(const JsonObject& c, HyperParameters& h) {
  const char* key = spelling(c, {"hidden_activation", "hidden_act"});
  SE_ASSIGN(h.activation, c.string(key, h.architecture == "gemma3" ? "gelu_pytorch_tanh" : "silu"));
  if (h.activation == "swish") h.activation = "silu";
  if (h.activation == "gelu_pytorch_tanh") h.activation = "gelu_tanh";
  if (h.activation == "silu" || h.activation == "gelu_tanh") return ok();
  return unsupported(c.bad(key, format("is {}, expected silu or gelu_pytorch_tanh", c.show(key))).message());
}

Status read_mla(const JsonObject& c, HyperParameters& h) {
  MlaConfig& m = h.mla;
  SE_TRY(read_int(c, "kv_lora_rank", 0, kMaxWidth, 0, m.kv_rank));
  if (m.kv_rank == 0) return ok();
  SE_TRY(read_int(c, "q_lora_rank", 0, kMaxWidth, 0, m.q_rank));
  SE_TRY(read_int(c, "qk_nope_head_dim", 1, kMaxWidth, {}, m.nope_dim));
  SE_TRY(read_int(c, "qk_rope_head_dim", 2, kMaxWidth, {}, m.rope_dim));
  SE_TRY(read_int(c, "v_head_dim", 1, kMaxWidth, {}, m.v_dim));
  h.head_dim = m.nope_dim + m.rope_dim, h.v_head_dim = m.v_dim, h.kv_heads = h.q_heads;
  return ok();
}

Status read_heads(const JsonObject& c, HyperParameters& h) {
  SE_TRY(read_int(c, "num_attention_heads", 1, kMaxHeads, {}, h.q_heads));
  SE_TRY(read_int(c, "num_key_value_heads", 1, kMaxHeads, h.q_heads, h.kv_heads));
  if (h.q_heads % h.kv_heads != 0) {
    return c.bad("num_key_value_heads",
                 format("is {}, expected a divisor of the {} query heads", h.kv_heads, h.q_heads));
  }
  SE_TRY(read_mla(c, h));
  if (h.mla.kv_rank > 0) return ok();
  if (!c.has("head_dim") && h.hidden % h.q_heads != 0) {
    return c.bad("num_attention_heads",
                 format("is {}, expected a divisor of hidden_size {}", h.q_heads, h.hidden));
  }
  SE_TRY(read_int(c, "head_dim", 1, kMaxWidth, h.hidden / h.q_heads, h.head_dim));
  h.v_head_dim = h.head_dim;
  if (c.has("query_pre_attn_scalar")) {
    SE_ASSIGN(const double scalar, c.number("query_pre_attn_scalar", 1e-9, 1e9));
    h.attention_scale = 1 / std::sqrt(scalar);
  }
  return ok();
}

Status read_softcap(const JsonObject& c, const char* key, std::optional<double>& out) {
  if (!c.has(key)) return ok();
  SE_ASSIGN(out, c.number(key, 1e-9, 1e9));
  return ok();
}

Status named_kinds(const JsonObject& c, HyperParameters& h) {
  SE_ASSIGN(const std::vector<std::string> types, c.strings("layer_types"));
  if (types.size() < size_t(h.layers)) {
    return c.bad("layer_types",
                 format("has {} entries, expected one for each of {} layers", types.size(), h.layers));
  }
  for (size_t i = 0; i < h.kinds.size(); ++i) {
    if (types[i] == "sliding_attention") {
      h.kinds[i] = LayerKind::kWindow;
    } else if (types[i] != "full_attention") {
      return unsupported(
          c.bad("layer_types",
                format("has {}, expected full_attention or sliding_attention", se::quoted(types[i])))
              .message());
    }
  }
  return ok();
}

// Which layers have a window: a list; or Gemma's pattern; or Qwen's layers from max_window_layers on, if
// used.
Status read_windows(const JsonObject& c, HyperParameters& h) {
  h.kinds.assign(size_t(h.layers), LayerKind::kFull);
  const bool gemma = h.architecture == "gemma3";
  SE_ASSIGN(const bool use, c.boolean("use_sliding_window", gemma || c.has("layer_types")));
  if (!use) return ok();
  if (c.has("layer_types")) {
    SE_TRY(named_kinds(c, h));
  } else {
    SE_ASSIGN(const int64_t pattern, c.integer("sliding_window_pattern", 1, kMaxLayers, 6));
    SE_ASSIGN(const int64_t full, c.integer("max_window_layers", 0, INT32_MAX, 0));
    for (int i = 0; i < h.layers; ++i) {
      if (gemma ? (i + 1) % pattern != 0 : i >= full) h.kinds[size_t(i)] = LayerKind::kWindow;
    }
  }
  if (std::find(h.kinds.begin(), h.kinds.end(), LayerKind::kWindow) == h.kinds.end()) return ok();
  SE_ASSIGN(h.window, c.integer("sliding_window", 1, kMaxContext));
  return ok();
}

Status read_sparse_layers(const JsonObject& c, HyperParameters& h) {
  std::vector<bool>& sparse = h.moe.sparse;
  sparse.assign(size_t(h.layers), true);
  if (c.has("mlp_layer_types")) {
    SE_ASSIGN(const std::vector<std::string> types, c.strings("mlp_layer_types"));
    if (types.size() < sparse.size()) {
      return c.bad("mlp_layer_types",
                   format("has {} entries, expected one for each of {} layers", types.size(), h.layers));
    }
    for (size_t i = 0; i < sparse.size(); ++i) {
      if (types[i] != "sparse" && types[i] != "dense")
        return c.bad("mlp_layer_types", format("has {}, expected sparse or dense", se::quoted(types[i])));
      sparse[i] = types[i] == "sparse";
    }
    return ok();
  }
  SE_ASSIGN(const int64_t dense, c.integer("first_k_dense_replace", 0, INT32_MAX, 0));
  SE_ASSIGN(const int64_t step, c.integer("decoder_sparse_step", 1, INT32_MAX, 1));
  SE_ASSIGN(const std::vector<int64_t> only, c.integers("mlp_only_layers", 0, INT32_MAX));
  for (int i = 0; i < h.layers; ++i) {
    const bool listed = std::find(only.begin(), only.end(), int64_t(i)) != only.end();
    sparse[size_t(i)] = i >= dense && !listed && (i + 1) % step == 0;
  }
  return ok();
}

Status read_routing(const JsonObject& c, HyperParameters& h) {
  MoeConfig& m = h.moe;
  const bool glm = h.architecture == "deepseek2";
  SE_ASSIGN(const std::string scoring, c.string("scoring_func", glm ? "sigmoid" : "softmax"));
  if (scoring != "sigmoid" && scoring != "softmax")
    return c.bad("scoring_func", format("is {}, expected sigmoid or softmax", se::quoted(scoring)));
  m.gating = scoring == "sigmoid" ? Gating::kSigmoid : Gating::kSoftmax;
  SE_ASSIGN(m.normalise, c.boolean("norm_topk_prob", glm));
  SE_ASSIGN(m.scale, c.number("routed_scaling_factor", 0, 1e9, 1.0));
  SE_TRY(read_int(c, "n_group", 1, m.experts, 1, m.groups));
  SE_TRY(read_int(c, "topk_group", 1, m.groups, m.groups, m.groups_used));
  if (m.experts % m.groups == 0) return ok();
  return c.bad("n_group", format("is {}, expected a divisor of the {} experts", m.groups, m.experts));
}

Status read_experts(const JsonObject& c, HyperParameters& h) {
  MoeConfig& m = h.moe;
  SE_TRY(read_int(c,
                  spelling(c, {"num_experts", "num_local_experts", "n_routed_experts"}),
                  0,
                  kMaxExperts,
                  0,
                  m.experts));
  if (m.experts == 0) return ok();
  SE_TRY(read_int(c, spelling(c, {"num_experts_per_tok", "top_k_experts"}), 1, m.experts, {}, m.used));
  SE_TRY(read_int(c, "moe_intermediate_size", 1, kMaxWidth, {}, m.ffn));
  if (c.has("shared_expert_intermediate_size")) {
    m.shared = 1;
    SE_TRY(read_int(c, "shared_expert_intermediate_size", 1, kMaxWidth, {}, m.shared_ffn));
  } else {
    SE_TRY(read_int(c, "n_shared_experts", 0, kMaxExperts, 0, m.shared));
    m.shared_ffn = int(std::min(kMaxWidth, int64_t(m.shared) * m.ffn));
  }
  SE_TRY(read_sparse_layers(c, h));
  return read_routing(c, h);
}

// Weights in another form than they are computed in: only block-FP8 is known.
Status check_quantisation(const JsonObject& c) {
  const char* key = "quantization_config";
  if (!c.has(key)) return ok();
  SE_ASSIGN(const JsonObject q, c.object(key));
  SE_ASSIGN(const std::string method, q.string("quant_method"));
  if (method != "fp8")
    return unsupported(
        q.bad("quant_method", format("is {}, expected fp8 or none", se::quoted(method))).message());
  SE_ASSIGN(const std::vector<int64_t> block, q.integers("weight_block_size", 1, kMaxWidth));
  if (block != std::vector<int64_t>{128, 128}) {
    return unsupported(
        q.bad("weight_block_size", format("is {}, expected [128, 128]", q.show("weight_block_size")))
            .message());
  }
  SE_ASSIGN(const std::string fmt, q.string("fmt", "e4m3"));
  if (fmt == "e4m3" || fmt == "float8_e4m3fn") return ok();
  return unsupported(q.bad("fmt", format("is {}, expected e4m3", se::quoted(fmt))).message());
}

Status read_dtype(const JsonObject& file, const JsonObject& c, HyperParameters& h) {
  const JsonObject& from = c.has("dtype") || c.has("torch_dtype") ? c : file;
  SE_ASSIGN(const std::string dtype, from.string(spelling(from, {"dtype", "torch_dtype"}), "bfloat16"));
  h.dtype = dtype == "float32" ? "f32" : dtype == "float16" ? "f16" : dtype == "bfloat16" ? "bf16" : "";
  return ok();
}

Status read_tied(const JsonObject& file, const JsonObject& c, HyperParameters& h) {
  const char* key = "tie_word_embeddings";
  const JsonObject& from = c.has(key) ? c : file;
  SE_ASSIGN(h.tied, from.boolean(key, h.architecture == "gemma3"));
  return ok();
}

}  // namespace

std::string architecture_of(const std::string& model_type) {
  for (const Architecture& a : kArchitectures) {
    if (model_type == a.model_type) return a.name;
  }
  return model_type;
}

Result<JsonObject> language_config(const JsonObject& file) {
  return file.has("text_config") ? file.object("text_config") : Result<JsonObject>(file);
}

Result<HyperParameters> read_hf_config(const JsonObject& file, const JsonObject& c) {
  HyperParameters h;
  SE_ASSIGN(const std::string type, c.string("model_type"));
  h.architecture = architecture_of(type);
  SE_TRY(check_quantisation(file));
  SE_TRY(check_quantisation(c));
  SE_TRY(read_size(c, h));
  SE_TRY(read_heads(c, h));
  SE_TRY(read_activation(c, h));
  SE_TRY(read_hf_rope(c, h));
  SE_TRY(read_windows(c, h));
  SE_TRY(read_experts(c, h));
  SE_TRY(read_softcap(c, "final_logit_softcapping", h.final_softcap));
  SE_TRY(read_softcap(c, "attn_logit_softcapping", h.attention_softcap));
  if (c.has("attention_bias")) {
    SE_ASSIGN(h.attention_bias, c.boolean("attention_bias"));
  }
  if (h.moe.experts == 0 && h.ffn == 0)
    return c.bad("intermediate_size", "is missing, expected the width of the MLP");
  SE_TRY(read_dtype(file, c, h));
  SE_TRY(read_tied(file, c, h));
  return h;
}

}  // namespace se
