// What load_checkpoint fills, and what it refuses at the level of models.
#include "model/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "model/testing/gguf_writer.h"
#include "model/testing/tiny_llama.h"

namespace se {
namespace {

TEST(Checkpoint, FillsEveryPart) {
  TinyLlamaOptions o;
  o.types = {DType::kQ8_0};
  GgufWriter w = tiny_llama(o);
  w.set("tokenizer.ggml.eot_token_id", uint32_t(kTinyImEnd));  // as eos: must come once
  w.set("tokenizer.ggml.eom_token_id", uint32_t(kTinyEndOfText));
  const TempFile file(w.bytes());
  int64_t done = 0, total = 0;
  auto loaded = load_checkpoint(file.path(), {.threads = 2, .report = [&](int64_t d, int64_t t) {
                                                EXPECT_GT(d, done);
                                                done = d, total = t;
                                              }});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_GT(total, 0);
  EXPECT_EQ(done, total);
  EXPECT_EQ(loaded->end_ids, (std::vector<int32_t>{kTinyImEnd, kTinyEndOfText}));
  EXPECT_NE(loaded->chat_template.find("<|im_start|>"), std::string::npos);
  EXPECT_EQ(loaded->vocab.tokens.size(), size_t(kTinyVocab));
  const ModelShape& s = loaded->model->shape();
  EXPECT_EQ(s.architecture, "llama");
  EXPECT_EQ(s.name, "Tiny Llama");
  EXPECT_EQ(s.layers, 3);
  EXPECT_EQ(s.hidden, 64);
  EXPECT_EQ(s.ffn, 128);
  EXPECT_EQ(s.q_heads, 4);
  EXPECT_EQ(s.kv_heads, 2);
  EXPECT_EQ(s.head_dim, 16);
  EXPECT_EQ(s.vocab, kTinyVocab);
  EXPECT_EQ(s.context, 32768);
  EXPECT_TRUE(s.tied);
  EXPECT_EQ(s.weight_types, "q8_0 (21), f32 (8)");
  EXPECT_EQ(s.parameters, 300 * 64 + 7 * 64 + 3 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128));
}

TEST(Checkpoint, SameOptionsWriteTheSameBytes) {
  EXPECT_EQ(tiny_llama().bytes(), tiny_llama().bytes());
  TinyLlamaOptions other;
  other.seed = 2;
  EXPECT_NE(tiny_llama().bytes(), tiny_llama(other).bytes());
}

struct Case {
  const char* name;
  std::function<void(GgufWriter&)> change;
  const char* message;  // part of it
};

std::string zeros(int64_t floats) { return std::string(size_t(floats) * 4, '\0'); }

std::vector<Case> cases() {
  const auto set = [](const char* key, auto value) { return [=](GgufWriter& w) { w.set(key, value); }; };
  const auto erase = [](const char* key) { return [=](GgufWriter& w) { w.erase(key); }; };
  const auto shape = [](const char* name, std::vector<int64_t> dims) {
    return [=](GgufWriter& w) {
      int64_t n = 1;
      for (const int64_t d : dims) n *= d;
      w.tensor(name, DType::kF32, dims, zeros(n));
    };
  };
  return {
      {"NoArchitecture", erase("general.architecture"), "'general.architecture' is missing"},
      {"OtherArchitecture",
       set("general.architecture", "mamba"),
       "architecture 'mamba' is not in this build, expected"},
      {"ArchitectureEvil", set("general.architecture", "a\nb"), "'a\\x0ab'"},
      {"ArchitectureNumber", set("general.architecture", uint32_t(1)), "is u32, expected a string"},
      {"NoLayers", erase("llama.block_count"), "'llama.block_count' is missing"},
      {"ZeroLayers", set("llama.block_count", uint32_t(0)), "is 0, expected 1 to"},
      {"HugeLayers", set("llama.block_count", uint32_t(4000000000)), "is 4000000000, expected 1 to"},
      {"MoreLayersThanTensors", set("llama.block_count", uint32_t(4)), "'blk.3.attn_norm.weight' is missing"},
      {"FewerLayersThanTensors",
       set("llama.block_count", uint32_t(2)),
       "'blk.2.attn_norm.weight' has no place"},
      {"HiddenDiffers",
       set("llama.embedding_length", uint32_t(128)),
       "'token_embd.weight' is f32[300, 64], expected [300, 128]"},
      {"HeadsDoNotDivide",
       set("llama.attention.head_count_kv", uint32_t(3)),
       "is 3, expected a divisor of the 4"},
      {"HeadCountZero", set("llama.attention.head_count", uint32_t(0)), "is 0, expected 1 to"},
      {"HeadCountNegative", set("llama.attention.head_count", int32_t(-4)), "is -4, expected 1 to"},
      {"HeadDimDiffers", set("llama.attention.key_length", uint32_t(32)), "expected"},
      {"ValueDimDiffers",
       set("llama.attention.value_length", uint32_t(8)),
       "value_length is 8, expected the key length 16"},
      {"LayersDiffer",
       set("llama.attention.head_count_kv", std::vector<int32_t>{2, 2, 1}),
       "is 2 in one layer and 1"},
      {"RopeTooWide", set("llama.rope.dimension_count", uint32_t(32)), "is 32, expected 2 to 16"},
      {"RopeOdd", set("llama.rope.dimension_count", uint32_t(7)), "is 7, expected an even"},
      {"LongRope", set("llama.rope.scaling.type", "longrope"), "RoPE scaling 'longrope'"},
      {"AttentionFactor", set("llama.rope.scaling.attn_factor", 1.25f), "attn_factor is 1.25, expected 1"},
      {"RopeFactorNan", set("llama.rope.scaling.factor", std::nanf("")), "is nan, expected"},
      {"YarnTheta",
       [](GgufWriter& w) {
         w.set("llama.rope.scaling.type", "yarn");
         w.set("llama.rope.freq_base", 1.0f);
       },
       "freq_base is 1, expected more"},
      {"Theta", set("llama.rope.freq_base", 0.0f), "is 0, expected 1"},
      {"Epsilon", set("llama.attention.layer_norm_rms_epsilon", -1.0f), "is -1, expected 0"},
      {"NoEpsilon", erase("llama.attention.layer_norm_rms_epsilon"), "is missing"},
      {"NoContext", erase("llama.context_length"), "is missing"},
      {"Experts",
       [](GgufWriter& w) {
         w.set("llama.expert_count", uint32_t(8));
         w.set("llama.expert_used_count", uint32_t(2));
       },
       "expert_count is 8, expected a dense model"},
      {"SlidingWindow", set("llama.attention.sliding_window", uint32_t(4096)), "sliding_window is 4096"},
      {"NoEmbedding",
       [](GgufWriter& w) { w.erase_tensor("token_embd.weight"); },
       "'token_embd.weight' is missing"},
      {"NoNorm",
       [](GgufWriter& w) { w.erase_tensor("output_norm.weight"); },
       "'output_norm.weight' is missing"},
      {"NoLayerTensor",
       [](GgufWriter& w) { w.erase_tensor("blk.1.ffn_up.weight"); },
       "'blk.1.ffn_up.weight' is missing"},
      {"Transposed", shape("blk.1.ffn_up.weight", {64, 128}), "f32[64, 128], expected [128, 64]"},
      {"NormRank", shape("blk.0.attn_norm.weight", {1, 64}), "f32[1, 64], expected [64]"},
      {"NormType",
       [](GgufWriter& w) { w.tensor("output_norm.weight", DType::kI32, {64}, zeros(64)); },
       "i32[64], expected f32, f16 or bf16"},
      {"ProjectionType",
       [](GgufWriter& w) {
         w.tensor("blk.0.attn_q.weight", DType::kI32, {64, 64}, zeros(64 * 64));
       },
       "i32[64, 64], expected a type"},
      {"NanWeight",
       [](GgufWriter& w) {
         std::string data = zeros(64 * 64);
         data[4 * 77 + 2] = char(0xc0), data[4 * 77 + 3] = char(0x7f);
         w.tensor("blk.0.attn_q.weight", DType::kF32, {64, 64}, data);
       },
       "'blk.0.attn_q.weight' has no finite number at element 77"},
      {"InfiniteScale",
       [](GgufWriter& w) {
         std::string data(64 * 2 * 34, '\0');
         data[34 * 5 + 1] = char(0xfc);
         w.tensor("blk.0.attn_q.weight", DType::kQ8_0, {64, 64}, data);
       },
       "'blk.0.attn_q.weight' has no finite number at element 160"},
      {"BiasShape", shape("blk.0.attn_q.bias", {32}), "f32[32], expected [64]"},
      {"UnknownTensor", shape("blk.0.attn_sinks.weight", {4}), "'blk.0.attn_sinks.weight' has no place"},
      {"RopeDivisorCount", shape("rope_freqs.weight", {16}), "f32[16], expected [8]"},
      {"RopeDivisorZero", shape("rope_freqs.weight", {8}), "has a frequency divisor 0"},
      {"VocabSize", set("llama.vocab_size", uint32_t(301)), "expected [301, 64]"},
      {"MoreTokensThanRows",
       shape("token_embd.weight", {299, 64}),
       "300 tokens, but the embedding has 299 rows"},
      {"NoTokens", erase("tokenizer.ggml.tokens"), "'tokenizer.ggml.tokens' is missing"},
      {"TemplateIsNumber", set("tokenizer.chat_template", uint32_t(1)), "is u32, expected a string"},
  };
}

class Refused : public ::testing::TestWithParam<Case> {};

TEST_P(Refused, InOneLineThatNamesTheFile) {
  GgufWriter w = tiny_llama();
  GetParam().change(w);
  const TempFile file(w.bytes());
  const auto loaded = load_checkpoint(file.path());
  ASSERT_FALSE(loaded.ok());
  const std::string& message = loaded.status().message();
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
  EXPECT_EQ(message.find(file.path()), 0u) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, Refused, ::testing::ValuesIn(cases()), [](const auto& made) {
  return std::string(made.param.name);
});

}  // namespace
}  // namespace se
