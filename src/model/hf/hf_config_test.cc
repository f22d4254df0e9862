// Every spelling of config.json that spec/models.md 3 lists, and what is refused.
#include "model/hf/hf_config.h"

#include <gtest/gtest.h>

#include "model/testing/safetensors_writer.h"

namespace se {
namespace {

Result<HyperParameters> read(const std::string& json) {
  const TempFolder folder;
  folder.write("config.json", json);
  SE_ASSIGN(const JsonObject file, JsonObject::open(folder.path() + "/config.json", 1 << 20));
  SE_ASSIGN(const JsonObject inner, language_config(file));
  return read_hf_config(file, inner);
}

std::string base(const std::string& type, const std::string& more = "") {
  return R"({"model_type": ")" + type +
         R"(", "hidden_size": 64, "num_hidden_layers": 7, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 300, "max_position_embeddings": 4096)" +
         (more.empty() ? "" : ", " + more) + "}";
}

HyperParameters good(const std::string& json) {
  auto config = read(json);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : HyperParameters();
}

TEST(HfConfig, FillsDefaults) {
  const HyperParameters h = good(base("llama", R"("num_key_value_heads": null, "rope_scaling": null)"));
  EXPECT_EQ(h.architecture, "llama");
  EXPECT_EQ(h.kv_heads, 4);
  EXPECT_EQ(h.head_dim, 16);
  EXPECT_EQ(h.norm_eps, 1e-6);
  EXPECT_EQ(h.rope.dim, 16);
  EXPECT_FALSE(h.rope.interleaved);
  EXPECT_FALSE(h.rope.theta.has_value());
  EXPECT_EQ(h.tied, false);
  EXPECT_EQ(h.activation, "silu");
  EXPECT_EQ(h.dtype, "bf16");
  EXPECT_EQ(h.window, 0);
}

TEST(HfConfig, ReadsRopeInBothVersionsOfTheFormat) {
  const std::string scaled = R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512)";
  for (const std::string& more :
       {R"("rope_theta": 500000, "rope_scaling": {"rope_type": "llama3", )" + scaled + "}",
        R"("rope_theta": 500000, "rope_scaling": {"type": "llama3", )" + scaled + "}",
        R"("rope_parameters": {"rope_theta": 500000, "rope_type": "llama3", )" + scaled + "}"}) {
    const HyperParameters h = good(base("llama", more));
    EXPECT_EQ(h.rope.theta, 5e5);
    EXPECT_EQ(h.rope.scaling, RopeScaling::kLlama3);
    EXPECT_EQ(h.rope.factor, 8);
    EXPECT_EQ(h.rope.original_context, 512);
  }
  const HyperParameters yarn =
      good(base("qwen2", R"("rope_scaling": {"type": "yarn", "factor": 4, "attention_factor": 1.5})"));
  EXPECT_EQ(yarn.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.rope.original_context, 4096);
  EXPECT_EQ(yarn.rope.attention_factor, 1.5);
}

TEST(HfConfig, ReadsGemmasLayersInBothVersionsOfTheFormat) {
  const HyperParameters old =
      good(base("gemma3_text", R"("head_dim": 32, "sliding_window": 8, "rope_theta": 1e6,
    "rope_scaling": {"rope_type": "linear", "factor": 8}, "rope_local_base_freq": 10000, "query_pre_attn_scalar": 16,
    "hidden_activation": "gelu_pytorch_tanh")"));
  const HyperParameters now = good(base("gemma3_text", R"("head_dim": 32, "sliding_window": 8,
    "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 1e6},
      "sliding_attention": {"rope_type": "default", "rope_theta": 10000}},
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
      "sliding_attention", "full_attention", "sliding_attention"], "query_pre_attn_scalar": 16)"));
  for (const HyperParameters& h : {old, now}) {
    EXPECT_EQ(h.architecture, "gemma3");
    EXPECT_EQ(h.window, 8);
    for (int i = 0; i < 7; ++i) EXPECT_EQ(h.kinds[size_t(i)] == LayerKind::kFull, i == 5) << i;
    EXPECT_EQ(h.rope.theta, 1e6);
    EXPECT_EQ(h.rope.scaling, RopeScaling::kLinear);
    EXPECT_EQ(h.rope_local.theta, 1e4);
    EXPECT_EQ(h.rope_local.scaling, RopeScaling::kNone);
    EXPECT_EQ(h.rope_local.dim, 32);
    EXPECT_EQ(h.attention_scale, 0.25);
    EXPECT_EQ(h.tied, true);
    EXPECT_EQ(h.activation, "gelu_tanh");
  }
}

TEST(HfConfig, IgnoresAWindowThatIsNotUsed) {
  const std::string window = R"("sliding_window": 64, "max_window_layers": 5)";
  EXPECT_EQ(good(base("qwen2", window + R"(, "use_sliding_window": false)")).window, 0);
  EXPECT_EQ(good(base("qwen2", window)).window, 0);
  const HyperParameters used = good(base("qwen2", window + R"(, "use_sliding_window": true)"));
  EXPECT_EQ(used.window, 64);
  EXPECT_EQ(used.kinds[4], LayerKind::kFull);
  EXPECT_EQ(used.kinds[5], LayerKind::kWindow);
}

TEST(HfConfig, ReadsExpertsOfQwenAndGlm) {
  const HyperParameters qwen = good(base("qwen3_moe", R"("num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "mlp_only_layers": [1], "decoder_sparse_step": 2, "norm_topk_prob": true)"));
  EXPECT_EQ(qwen.architecture, "qwen3moe");
  EXPECT_EQ(qwen.moe.sparse, (std::vector<bool>{false, false, false, true, false, true, false}));
  EXPECT_EQ(qwen.moe.gating, Gating::kSoftmax);
  EXPECT_EQ(qwen.moe.normalise, true);
  const HyperParameters glm = good(base("glm4_moe_lite", R"("n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.8,
    "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "head_dim": 8, "n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 1)"));
  EXPECT_EQ(glm.architecture, "deepseek2");
  EXPECT_EQ(glm.moe.gating, Gating::kSigmoid);
  EXPECT_EQ(glm.moe.scale, 1.8);
  EXPECT_EQ(glm.moe.shared_ffn, 32);
  EXPECT_EQ(glm.moe.groups_used, 2);
  EXPECT_FALSE(glm.moe.sparse[0]);
  EXPECT_TRUE(glm.moe.sparse[1]);
  EXPECT_EQ(glm.extra_layers, 1);
  EXPECT_EQ(glm.head_dim, 20);
  EXPECT_EQ(glm.rope.dim, 8);
  EXPECT_TRUE(glm.rope.interleaved);
}

TEST(HfConfig, LooksIntoTextConfigAndAroundIt) {
  const HyperParameters h =
      good(R"({"model_type": "gemma3", "tie_word_embeddings": false, "torch_dtype": "float16",
    "text_config": )" +
           base("gemma3_text", R"("head_dim": 16, "sliding_window": 8)") + "}");
  EXPECT_EQ(h.architecture, "gemma3");
  EXPECT_EQ(h.tied, false);
  EXPECT_EQ(h.dtype, "f16");
}

TEST(HfConfig, RefusesByName) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "byte 1: not JSON here"},
      {"{", "not JSON here"},
      {"[]", "holds array, expected a JSON object"},
      {"{}", "'model_type' is missing, expected a string"},
      {std::string(40, '[') + std::string(40, ']'), "nest deeper than 32"},
      {R"({"model_type": "llama", "model_type": "llama"})", "'model_type' is there twice"},
      {"{\"model_type\": \"\xff\"}", "not JSON here"},
      {R"({"model_type": 1e999})", "out of range"},
      {R"({"model_type": "llama"})", "'num_hidden_layers' is missing"},
      {base("llama", R"("num_hidden_layers": 7)"), "is there twice"},
      {base("llama", R"("num_key_value_heads": 3)"), "is 3, expected a divisor of the 4"},
      {base("llama", R"("num_key_value_heads": 0)"), "is 0, expected an integer from 1"},
      {base("llama", R"("head_dim": "16")"), "'head_dim' is '16', expected an integer"},
      {base("llama", R"("head_dim": 15)"), "15 rotated channels, expected an even"},
      {base("llama", R"("head_dim": 1e3)"), "is 1000.0, expected an integer"},
      {base("llama", R"("head_dim": 18446744073709551615)"), "expected an integer"},
      {base("llama", R"("rms_norm_eps": -1)"), "is -1, expected a number"},
      {base("llama", R"("hidden_act": "relu")"), "'hidden_act' is 'relu', expected silu"},
      {base("llama", R"("rope_scaling": {"type": "dynamic", "factor": 2})"),
       "'dynamic', expected default, linear"},
      {base("llama", R"("rope_scaling": {"rope_type": "linear"})"), "rope_scaling.'factor' is missing"},
      {base("llama", R"("rope_scaling": [])"), "expected an object"},
      {base("qwen3", R"("layer_types": ["full_attention"])"), "has 1 entries, expected one for each of 7"},
      {base("llama", R"("quantization_config": {"quant_method": "awq"})"), "is 'awq', expected fp8 or none"},
      {base("llama", R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]})"),
       "expected [128, 128]"},
      {base(
           "llama",
           R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e5m2"})"),
       "is 'e5m2', expected e4m3"},
      {base("qwen3_moe", R"("num_experts": 8)"), "'num_experts_per_tok' is missing"},
      {base("qwen3_moe", R"("num_experts": 8, "num_experts_per_tok": 9)"),
       "is 9, expected an integer from 1 to 8"},
      {base("llama", R"("text_config": 3)"), "'text_config' is 3, expected an object"},
  };
  for (const auto& [json, message] : cases) {
    const Status status = read(json).status();
    EXPECT_NE(status.message().find(message), std::string::npos)
        << "wanted " << message << ", got: " << (status.ok() ? "ok" : status.message());
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    EXPECT_NE(status.message().find("config.json"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace se
