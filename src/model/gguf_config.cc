#include "model/gguf_config.h"

#include <algorithm>
#include <cmath>

#include "base/fmt.h"
#include "base/log.h"
#include "base/quoted.h"

namespace se {
namespace {

constexpr int64_t kMaxLayers = 4096, kMaxWidth = int64_t(1) << 24, kMaxHeads = 1 << 16;
constexpr int64_t kMaxExperts = 1 << 16, kMaxContext = int64_t(1) << 40;

// The keys of one architecture by their names without it. A value is read into `out` where the file has it;
// `out` keeps what it was otherwise.
class Keys {
 public:
  Keys(const Gguf& file, std::string architecture) : file_(file), prefix_(std::move(architecture) + ".") {}
  std::string full(const char* name) const { return prefix_ + name; }
  bool has(const char* name) const { return file_.has(full(name)); }

  Status need(const char* name, int64_t min, int64_t max, int& out) const {
    SE_ASSIGN(const int64_t value, file_.uniform_integer(full(name), min, max));
    out = int(value);
    return ok();
  }
  Status read(const char* name, int64_t min, int64_t max, int& out) const {
    SE_ASSIGN(const int64_t value, file_.uniform_integer(full(name), min, max, out));
    out = int(value);
    return ok();
  }
  Status read(const char* name, int64_t min, int64_t max, int64_t& out) const {
    SE_ASSIGN(out, file_.integer(full(name), min, max, out));
    return ok();
  }
  Status read(const char* name, double min, double max, double& out) const {
    SE_ASSIGN(out, file_.number(full(name), min, max, out));
    return ok();
  }
  Status read(const char* name, double min, double max, std::optional<double>& out) const {
    if (!has(name)) return ok();
    SE_ASSIGN(out, file_.number(full(name), min, max));
    return ok();
  }
  Status bad(const char* name, const std::string& text) const { return file_.bad_value(full(name), text); }
  const Gguf& file() const { return file_; }

 private:
  const Gguf& file_;
  std::string prefix_;
};

bool is(const HyperParameters& h, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), h.architecture) != names.end();
}

Status read_size(const Keys& k, HyperParameters& h) {
  SE_TRY(k.need("block_count", 1, kMaxLayers, h.layers));
  SE_TRY(k.read("nextn_predict_layers", 0, h.layers - 1, h.extra_layers));
  h.layers -= h.extra_layers;
  SE_TRY(k.need("embedding_length", 1, kMaxWidth, h.hidden));
  SE_ASSIGN(h.context, k.file().integer(k.full("context_length"), 1, kMaxContext));
  SE_ASSIGN(h.norm_eps, k.file().number(k.full("attention.layer_norm_rms_epsilon"), 0, 1));
  SE_TRY(k.read("vocab_size", 1, INT32_MAX, h.vocab));
  SE_TRY(k.read("expert_count", 0, kMaxExperts, h.moe.experts));
  if (h.moe.experts == 0) return k.need("feed_forward_length", 1, kMaxWidth, h.ffn);
  return k.read("feed_forward_length", 0, kMaxWidth, h.ffn);
}

Status read_heads(const Keys& k, HyperParameters& h) {
  SE_TRY(k.need("attention.head_count", 1, kMaxHeads, h.q_heads));
  h.kv_heads = h.q_heads;
  SE_TRY(k.read("attention.head_count_kv", 1, kMaxHeads, h.kv_heads));
  if (h.q_heads % h.kv_heads != 0) {
    return k.bad("attention.head_count_kv",
                 format("is {}, expected a divisor of the {} query heads", h.kv_heads, h.q_heads));
  }
  h.head_dim = h.hidden / h.q_heads;
  SE_TRY(k.read("attention.key_length", 1, kMaxWidth, h.head_dim));
  if (h.head_dim < 1 || (!k.has("attention.key_length") && h.hidden % h.q_heads != 0)) {
    return k.bad("attention.head_count",
                 format("is {}, expected a divisor of the embedding length {}", h.q_heads, h.hidden));
  }
  h.v_head_dim = h.head_dim;
  SE_TRY(k.read("attention.value_length", 1, kMaxWidth, h.v_head_dim));
  if (is(h, {"gemma3"})) {  // no key says it: the 27B, told by its layers, differs
    h.attention_scale = 1 / std::sqrt(double(h.layers == 62 ? h.hidden / h.q_heads : h.head_dim));
  }
  SE_TRY(k.read("attn_logit_softcapping", 0.0, 1e9, h.attention_softcap));
  return k.read("final_logit_softcapping", 0.0, 1e9, h.final_softcap);
}

// deepseek2 files say key_length and value_length of the cached latent, and of a head with the suffix _mla.
Status read_mla(const Keys& k, HyperParameters& h) {
  MlaConfig& m = h.mla;
  SE_TRY(k.read("attention.kv_lora_rank", 0, kMaxWidth, m.kv_rank));
  if (m.kv_rank == 0) return ok();
  SE_TRY(k.read("attention.q_lora_rank", 0, kMaxWidth, m.q_rank));
  SE_TRY(k.need("rope.dimension_count", 2, kMaxWidth, m.rope_dim));
  SE_TRY(k.read("attention.key_length_mla", 1, kMaxWidth, h.head_dim));
  SE_TRY(k.read("attention.value_length_mla", 1, kMaxWidth, h.v_head_dim));
  m.nope_dim = h.head_dim - m.rope_dim, m.v_dim = h.v_head_dim;
  if (m.nope_dim < 1) {
    return k.bad("rope.dimension_count",
                 format("is {}, expected less than the key length {}", m.rope_dim, h.head_dim));
  }
  h.kv_heads = h.q_heads;
  return ok();
}

Status read_scaling(const Keys& k, HyperParameters& h) {
  RopeConfig& r = h.rope;
  SE_ASSIGN(const std::string type, k.file().string(k.full("rope.scaling.type"), "linear"));
  if (type != "linear" && type != "none" && type != "yarn") {
    return unsupported(
        format("{}: RoPE scaling {} is not in this build, expected none, linear, yarn or the "
               "tensor 'rope_freqs.weight'",
               k.file().path(),
               quoted(type)));
  }
  SE_TRY(k.read("rope.scale_linear", 0.0, 1e9, r.factor));  // the old name of the factor
  SE_TRY(k.read("rope.scaling.factor", 0.0, 1e9, r.factor));
  SE_TRY(k.read("rope.scaling.attn_factor", 0.0, 1e9, r.attention_factor));
  if (type == "none" || r.factor == 0) r.factor = 1;  // 0: some converters' "unscaled"
  if (type == "linear" && r.factor != 1) r.scaling = RopeScaling::kLinear;
  if (type != "yarn") return ok();
  r.scaling = RopeScaling::kYarn;
  r.original_context = h.context;
  SE_TRY(k.read("rope.scaling.original_context_length", 1, kMaxContext, r.original_context));
  SE_TRY(k.read("rope.scaling.yarn_beta_fast", 0.0, 1e9, r.beta_fast));
  SE_TRY(k.read("rope.scaling.yarn_beta_slow", 0.0, 1e9, r.beta_slow));
  std::optional<double> log_multiplier;  // 0.1 mscale_all_dim
  SE_TRY(k.read("rope.scaling.yarn_log_multiplier", 0.0, 1e9, log_multiplier));
  if (log_multiplier) r.mscale_all_dim = *log_multiplier / 0.1;
  return ok();
}

Status read_rope(const Keys& k, HyperParameters& h) {
  RopeConfig& r = h.rope;
  SE_TRY(k.read("rope.freq_base", 1.0, 1e12, r.theta));
  r.dim = h.mla.kv_rank > 0 ? h.mla.rope_dim : h.head_dim;
  if (h.mla.kv_rank == 0) SE_TRY(k.read("rope.dimension_count", 2, h.head_dim, r.dim));
  if (r.dim % 2 != 0) return k.bad("rope.dimension_count", format("is {}, expected an even number", r.dim));
  r.interleaved = is(h, {"llama", "deepseek2"});
  SE_TRY(read_scaling(k, h));
  h.rope_local = r;
  if (is(h, {"gemma3"})) {  // local layers are unscaled, whatever the keys say of scaling
    h.rope_local.theta = 1e4;
    h.rope_local.scaling = RopeScaling::kNone, h.rope_local.factor = 1;
    SE_TRY(k.read("rope.freq_base_swa", 1.0, 1e12, h.rope_local.theta));
  }
  return ok();
}

// Which layers have a window. Qwen files may name one that the models were trained without.
Status read_windows(const Keys& k, HyperParameters& h) {
  h.kinds.assign(size_t(h.layers), LayerKind::kFull);
  if (is(h, {"qwen2", "qwen3", "qwen3moe"})) return ok();
  SE_TRY(k.read("attention.sliding_window", 0, INT64_MAX, h.window));
  if (h.window >= h.context && !is(h, {"gemma3"})) h.window = 0;
  if (h.window == 0) return ok();
  int pattern = is(h, {"gemma3"}) ? 6 : 0;  // every pattern-th layer is full; 0: none is
  const char* key = "attention.sliding_window_pattern";
  if (!k.has(key) || k.file().integer(k.full(key), 1, kMaxLayers).ok()) {
    SE_TRY(k.read(key, 1, kMaxLayers, pattern));
    for (int i = 0; i < h.layers; ++i) {
      if (pattern == 0 || (i + 1) % pattern != 0) h.kinds[size_t(i)] = LayerKind::kWindow;
    }
    return ok();
  }
  SE_ASSIGN(const std::vector<int32_t> windowed, k.file().ints(k.full(key)));
  if (windowed.size() < size_t(h.layers)) {
    return k.bad(key,
                 format("has {} entries, expected one for each of {} layers", windowed.size(), h.layers));
  }
  for (size_t i = 0; i < h.kinds.size(); ++i) {
    if (windowed[i] != 0) h.kinds[i] = LayerKind::kWindow;
  }
  return ok();
}

// Files of DeepSeek's kind without the key are softmax, but GLM-4.7-Flash, told by its size, is not.
Status read_gating(const Keys& k, HyperParameters& h) {
  const char* key = "expert_gating_func";
  if (k.has(key)) {
    SE_ASSIGN(const int64_t function, k.file().integer(k.full(key), 0, INT32_MAX));
    if (function != 1 && function != 2)
      return k.bad(key, format("is {}, expected 1 (softmax) or 2 (sigmoid)", function));
    h.moe.gating = function == 1 ? Gating::kSoftmax : Gating::kSigmoid;
  } else if (is(h, {"deepseek2"})) {
    const GgufTensor* embedding = k.file().find_tensor("token_embd.weight");
    const int64_t vocab = h.vocab > 0 ? h.vocab : embedding != nullptr ? embedding->dims[1] : 0;
    const int blocks = h.layers + h.extra_layers;
    const bool glm = (blocks == 47 || blocks == 48) && vocab == 154880;
    h.moe.gating = glm ? Gating::kSigmoid : Gating::kSoftmax;
    if (glm) SE_LOG(warn, "gguf.gating", "file", k.file().path(), "assumed", "sigmoid (GLM-4.7-Flash)");
  }
  return ok();
}

Status read_experts(const Keys& k, HyperParameters& h) {
  MoeConfig& m = h.moe;
  if (m.experts == 0) return ok();
  SE_TRY(k.need("expert_used_count", 1, m.experts, m.used));
  m.ffn = h.ffn;
  SE_TRY(k.read("expert_feed_forward_length", 1, kMaxWidth, m.ffn));
  SE_TRY(k.read("expert_shared_count", 0, kMaxExperts, m.shared));
  m.shared_ffn = int(std::min(kMaxWidth, int64_t(m.shared) * m.ffn));
  SE_TRY(k.read("expert_shared_feed_forward_length", 0, kMaxWidth, m.shared_ffn));
  SE_TRY(k.read("expert_weights_scale", 0.0, 1e9, m.scale));
  if (m.scale == 0) m.scale = 1;
  if (k.has("expert_weights_norm")) {
    SE_ASSIGN(m.normalise, k.file().boolean(k.full("expert_weights_norm")));
  }
  SE_TRY(k.read("expert_group_count", 0, m.experts, m.groups));
  m.groups = std::max(m.groups, 1);
  m.groups_used = m.groups;
  SE_TRY(k.read("expert_group_used_count", 0, m.groups, m.groups_used));
  if (m.experts % m.groups != 0) {
    return k.bad("expert_group_count",
                 format("is {}, expected a divisor of the {} experts", m.groups, m.experts));
  }
  int dense = 0;
  SE_TRY(k.read("leading_dense_block_count", 0, h.layers, dense));
  m.sparse.assign(size_t(h.layers), true);
  std::fill_n(m.sparse.begin(), dense, false);
  return read_gating(k, h);
}

}  // namespace

Result<HyperParameters> read_gguf_config(const Gguf& file) {
  HyperParameters h;
  SE_ASSIGN(h.architecture, file.string("general.architecture"));
  SE_ASSIGN(h.name, file.string("general.name", ""));
  const Keys keys(file, h.architecture);
  SE_TRY(read_size(keys, h));
  SE_TRY(read_heads(keys, h));
  SE_TRY(read_mla(keys, h));
  SE_TRY(read_rope(keys, h));
  SE_TRY(read_windows(keys, h));
  SE_TRY(read_experts(keys, h));
  return h;
}

}  // namespace se
