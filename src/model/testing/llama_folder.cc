#include "model/testing/llama_folder.h"

#include <cstring>

#include "base/check.h"
#include "base/fmt.h"

namespace se {
namespace {

struct Role {
  const char *gguf, *hf;
};
constexpr Role kRoles[] = {{"attn_norm", "input_layernorm"},
                           {"attn_q", "self_attn.q_proj"},
                           {"attn_k", "self_attn.k_proj"},
                           {"attn_v", "self_attn.v_proj"},
                           {"attn_output", "self_attn.o_proj"},
                           {"ffn_norm", "post_attention_layernorm"},
                           {"ffn_gate", "mlp.gate_proj"},
                           {"ffn_up", "mlp.up_proj"},
                           {"ffn_down", "mlp.down_proj"}};

// "blk.3.attn_q.weight" -> "layers.3.self_attn.q_proj.weight"
std::string hf_name(const std::string& gguf, const std::string& prefix) {
  if (gguf == "token_embd.weight") return prefix + "embed_tokens.weight";
  if (gguf == "output_norm.weight") return prefix + "norm.weight";
  if (gguf == "output.weight") return "lm_head.weight";
  const size_t dot = gguf.find('.', 4), last = gguf.rfind('.');
  const std::string role = gguf.substr(dot + 1, last - dot - 1);
  for (const Role& r : kRoles) {
    if (role == r.gguf) return prefix + "layers." + gguf.substr(4, dot - 3) + r.hf + gguf.substr(last);
  }
  SE_CHECK(false, "{} has no place in a folder", gguf);
  return "";
}

// GGUF row h D + 2 i + s is row h D + s D / 2 + i of safetensors (spec/models.md 9.3).
std::string unpermuted(const TinyTensor& t, int64_t head_dim) {
  const size_t row = t.data.size() / size_t(t.shape[0]);
  std::string out(t.data.size(), '\0');
  for (int64_t r = 0; r < t.shape[0]; ++r) {
    const int64_t h = r / head_dim, i = r % head_dim / 2, s = r % 2;
    const int64_t to = h * head_dim + s * head_dim / 2 + i;
    std::memcpy(&out[size_t(to) * row], &t.data[size_t(r) * row], row);
  }
  return out;
}

}  // namespace

SafetensorsWriter llama_safetensors(const TinyLlamaOptions& options, const std::string& prefix) {
  SafetensorsWriter w;
  for (const TinyTensor& t : tiny_llama_tensors(options)) {
    const bool rotated = t.name.find("attn_q.") != t.name.npos || t.name.find("attn_k.") != t.name.npos;
    w.tensor(hf_name(t.name, prefix), t.dtype, t.shape, rotated ? unpermuted(t, options.head_dim) : t.data);
  }
  return w;
}

std::string llama_config(const TinyLlamaOptions& o) {
  std::string text =
      format(R"({{"model_type": "llama", "hidden_size": {}, "num_hidden_layers": {}, )", o.hidden, o.layers);
  text += format(R"("num_attention_heads": {}, "num_key_value_heads": {}, )", o.q_heads, o.kv_heads);
  text +=
      format(R"("head_dim": {}, "intermediate_size": {}, "vocab_size": {}, )", o.head_dim, o.ffn, kTinyVocab);
  text += format(R"("max_position_embeddings": {}, "rms_norm_eps": 1e-5, )", o.context);
  text += format(
      R"("rope_theta": {}, "tie_word_embeddings": {}, "torch_dtype": "float32", )", o.rope_theta, o.tied);
  if (o.rope_linear != 1)
    text += format(R"("rope_scaling": {{"type": "linear", "factor": {}}}, )", o.rope_linear);
  return text + format(R"("eos_token_id": {}}})", kTinyImEnd);
}

}  // namespace se
