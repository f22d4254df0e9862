// A folder is the same model as a GGUF file of its weights.
#include "model/hf/hf_folder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/half.h"
#include "base/rng.h"
#include "device/cpu/thread_pool.h"
#include "model/checkpoint.h"
#include "model/testing/forward.h"
#include "model/testing/llama_folder.h"
#include "model/testing/plain_port.h"

namespace se {
namespace {

std::vector<float> logits_of(const Model& model) {
  ThreadPool pool(2);
  Stream stream(pool);
  PlainPort port(model.kv(Compute::kExact));
  Rng rng(5);
  std::vector<int32_t> ids;
  for (int i = 0; i < 24; ++i) ids.push_back(int32_t(rng.below(kTinyVocab)));
  return forward(model, ids, port, Compute::kExact, stream);
}

std::vector<float> gguf_logits(const TinyLlamaOptions& o) {
  const TempFile file(tiny_llama(o).bytes());
  auto loaded = load_model(file.path());
  SE_CHECK(loaded.ok(), "{}", loaded.status().message());
  return logits_of(*loaded->model);
}

// Sums of a few hundred f32 products in another order of heads' channels: some roundings of 6e-8.
void expect_close(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  float peak = 0, error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    peak = std::max(peak, std::fabs(want[i]));
    error = std::max(error, std::fabs(got[i] - want[i]));
  }
  EXPECT_LE(error, 1e-5f * peak);
}

TEST(HfFolder, GivesTheLogitsOfTheSameWeightsInGguf) {
  TinyLlamaOptions o;
  for (const bool tied : {true, false}) {
    for (const char* prefix : {"model.", "model.language_model.", "language_model.model."}) {
      o.tied = tied, o.biases = !tied, o.rope_linear = tied ? 1 : 4, o.rope_theta = 5e5f;
      const TempFolder folder;
      folder.write("config.json", llama_config(o));
      folder.write("model.safetensors", llama_safetensors(o, prefix).bytes());
      auto loaded = load_model(folder.path());
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      EXPECT_EQ(loaded->model->shape().tied, tied);
      EXPECT_EQ(loaded->file.config().dtype, "f32");
      EXPECT_FALSE(loaded->model->kv(Compute::kExact).layers[0].qk.interleaved);
      expect_close(logits_of(*loaded->model), gguf_logits(o));
    }
  }
}

TEST(HfFolder, ReadsShardsThatItsIndexNames) {
  TinyLlamaOptions o;
  const SafetensorsWriter all = llama_safetensors(o);
  const TempFolder folder;
  folder.write("config.json", llama_config(o));
  SafetensorsWriter parts[2] = {all, all};
  std::string map;
  size_t i = 0;
  for (const std::string& name : all.names()) {
    const size_t part = i++ % 2;
    parts[1 - part].erase(name);
    map += format("{}\"{}\": \"part{}.safetensors\"", map.empty() ? "" : ", ", name, part);
  }
  folder.write("model.safetensors.index.json", "{\"metadata\": {}, \"weight_map\": {" + map + "}}");
  folder.write("part0.safetensors", parts[0].bytes());
  folder.write("part1.safetensors", parts[1].bytes());
  auto loaded = load_model(folder.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->file.files().size(), 2u);
  expect_close(logits_of(*loaded->model), gguf_logits(o));
}

TEST(HfFolder, IgnoresWhatIsNotPartOfTheForwardPass) {
  TinyLlamaOptions o;
  SafetensorsWriter w = llama_safetensors(o);
  w.tensor("model.visual.patch.weight", DType::kI64, {1}, std::string(8, '\1'));
  w.tensor("mtp.fc.weight", DType::kF32, {1}, std::string(4, '\0'));
  w.tensor("model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {8}, std::string(32, '\0'));
  const TempFolder folder;
  folder.write("config.json", llama_config(o));
  folder.write("model.safetensors", w.bytes());
  EXPECT_TRUE(load_model(folder.path()).ok()) << load_model(folder.path()).status().message();
  w.tensor("model.layers.0.self_attn.sinks", DType::kF32, {4}, std::string(16, '\0'));
  folder.write("model.safetensors", w.bytes());
  const Status status = load_model(folder.path()).status();
  EXPECT_NE(status.message().find("'model.layers.0.self_attn.sinks' has no place"), std::string::npos)
      << status.message();
}

TEST(HfFolder, HalvesAndBf16AreUsedAsTheyLieAndVectorsBecomeF32) {
  TinyLlamaOptions o;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    SafetensorsWriter half, full;
    const SafetensorsWriter f32 = llama_safetensors(o);
    // Round every weight to the narrow type, and write it narrow and wide: both must give the same bits.
    f32.each([&](const std::string& name, const std::vector<int64_t>& shape, const std::string& data) {
      std::string narrow, wide;
      for (size_t at = 0; at < data.size(); at += 4) {
        float x;
        std::memcpy(&x, &data[at], 4);
        const uint16_t h = dtype == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
        x = dtype == DType::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
        narrow.append(reinterpret_cast<const char*>(&h), 2);
        wide.append(reinterpret_cast<const char*>(&x), 4);
      }
      half.tensor(name, dtype, shape, narrow);
      full.tensor(name, DType::kF32, shape, wide);
    });
    std::vector<float> logits[2];
    for (const auto& [w, out] : {std::pair(&half, &logits[0]), std::pair(&full, &logits[1])}) {
      const TempFolder folder;
      folder.write("config.json", llama_config(o));
      folder.write("model.safetensors", w->bytes());
      auto loaded = load_model(folder.path());
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      *out = logits_of(*loaded->model);
    }
    EXPECT_EQ(logits[0], logits[1]);
  }
}

}  // namespace
}  // namespace se
