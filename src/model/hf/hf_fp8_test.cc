// Block-FP8 weights are the values their formula gives, at sizes that are no multiple of its squares.
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

// spec/models.md 7.2, in double.
double e4m3(uint8_t code) {
  const int sign = code >> 7, e = (code >> 3) & 15, m = code & 7;
  const double x = e > 0 ? (1 + m / 8.0) * std::ldexp(1.0, e - 7) : m / 8.0 * std::ldexp(1.0, -6);
  return sign ? -x : x;
}

struct Fp8 {
  std::string codes, scales, values;  // values: f32, what the codes stand for
  std::vector<int64_t> scale_shape;
};

Fp8 random_fp8(int64_t rows, int64_t columns, DType scale_type, Rng& rng) {
  Fp8 out;
  out.scale_shape = {(rows + 127) / 128, (columns + 127) / 128};
  std::vector<float> scales;
  for (int64_t i = 0; i < out.scale_shape[0] * out.scale_shape[1]; ++i) {
    const uint16_t half =
        f32_to_bf16((1 + 0.5f * float(rng.below(100)) / 100) / (448 * std::sqrt(float(columns))) * 8);
    scales.push_back(bf16_to_f32(half));
    if (scale_type == DType::kBF16) out.scales.append(reinterpret_cast<const char*>(&half), 2);
    if (scale_type == DType::kF32) out.scales.append(reinterpret_cast<const char*>(&scales.back()), 4);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      uint8_t code = uint8_t(rng.below(256));
      if ((code & 0x7f) == 0x7f) code = 0;
      out.codes += char(code);
      const float x = float(e4m3(code)) * scales[size_t(r / 128 * out.scale_shape[1] + c / 128)];
      out.values.append(reinterpret_cast<const char*>(&x), 4);
    }
  }
  return out;
}

// The folder of `o` with all projections of layers in block-FP8, and the same with their values in F32.
struct Pair {
  SafetensorsWriter fp8, f32;
};

Pair make_pair_of(const TinyLlamaOptions& o, DType scale_type) {
  Pair out;
  Rng rng(9);
  llama_safetensors(o).each(
      [&](const std::string& name, const std::vector<int64_t>& shape, const std::string& data) {
        if (shape.size() != 2 || name.find("_proj") == std::string::npos) {
          out.fp8.tensor(name, DType::kF32, shape, data);
          out.f32.tensor(name, DType::kF32, shape, data);
          return;
        }
        const Fp8 made = random_fp8(shape[0], shape[1], scale_type, rng);
        out.fp8.tensor(name, DType::kF8E4M3, shape, made.codes);
        out.fp8.tensor(name + "_scale_inv", scale_type, made.scale_shape, made.scales);
        out.f32.tensor(name, DType::kF32, shape, made.values);
      });
  return out;
}

std::string fp8_config(const TinyLlamaOptions& o) {
  std::string text = llama_config(o);
  text.pop_back();
  return text +
         R"(, "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}})";
}

std::vector<float> logits_of(const std::string& folder) {
  auto loaded = load_model(folder);
  SE_CHECK(loaded.ok(), "{}", loaded.status().message());
  ThreadPool pool(2);
  Stream stream(pool);
  PlainPort port(loaded->model->kv(Compute::kExact));
  const std::vector<int32_t> ids = {5, 9, 200, 31, 7};
  return forward(*loaded->model, ids, port, Compute::kExact, stream);
}

TEST(HfFp8, GivesTheBitsOfTheSameValuesInF32) {
  TinyLlamaOptions o;
  o.hidden = 160, o.ffn = 200, o.q_heads = 6, o.head_dim = 32, o.kv_heads = 3, o.layers = 2;  // 200: no 32s
  for (const DType scale_type : {DType::kF32, DType::kBF16}) {
    const Pair pair = make_pair_of(o, scale_type);
    const TempFolder fp8, f32;
    fp8.write("config.json", fp8_config(o));
    fp8.write("model.safetensors", pair.fp8.bytes());
    f32.write("config.json", llama_config(o));
    f32.write("model.safetensors", pair.f32.bytes());
    EXPECT_EQ(logits_of(fp8.path()), logits_of(f32.path()));
    auto loaded = load_model(fp8.path());
    EXPECT_NE(loaded->model->shape().weight_types.find("f8e4m3 (14)"), std::string::npos)
        << loaded->model->shape().weight_types;
  }
}

struct Broken {
  const char* name;
  std::function<void(SafetensorsWriter&)> change;
  const char* message;
};

TEST(HfFp8, RefusesScalesThatDoNotFit) {
  const std::string weight = "model.layers.1.mlp.up_proj.weight", scale = weight + "_scale_inv";
  const std::string zeros(4096, '\0');
  const auto nan_code = [&](SafetensorsWriter& w) {
    std::string data(128 * 64, '\1');
    data[64 * 3 + 5] = char(0xff);
    w.tensor(weight, DType::kF8E4M3, {128, 64}, data);
  };
  const Broken cases[] = {
      {"no scale", [&](SafetensorsWriter& w) { w.erase(scale); }, "is f8e4m3, expected a tensor of scales"},
      {"no weight",
       [&](SafetensorsWriter& w) { w.erase(weight); },
       "has scales for a weight that is missing"},
      {"shape",
       [&](SafetensorsWriter& w) {
         w.tensor(scale, DType::kF32, {2, 1}, zeros.substr(0, 8));
       },
       "is f32[2, 1], expected f32 or bf16 [1, 1]"},
      {"type",
       [&](SafetensorsWriter& w) {
         w.tensor(scale, DType::kF16, {1, 1}, zeros.substr(0, 2));
       },
       "is f16[1, 1], expected f32 or bf16"},
      {"infinite",
       [&](SafetensorsWriter& w) {
         w.tensor(scale, DType::kF32, {1, 1}, std::string("\0\0\x80\x7f", 4));
       },
       "has the scale inf at 0"},
      {"nan code", nan_code, "has NaN at [3, 5]"},
      {"scale of an f32",
       [&](SafetensorsWriter& w) {
         w.tensor(weight, DType::kF32, {128, 64}, std::string(128 * 64 * 4, '\0'));
       },
       "is f32[128, 64], but has scales"}};
  for (const Broken& b : cases) {
    const TinyLlamaOptions o;
    Pair pair = make_pair_of(o, DType::kF32);
    b.change(pair.fp8);
    const TempFolder folder;
    folder.write("config.json", fp8_config(o));
    folder.write("model.safetensors", pair.fp8.bytes());
    const Status status = load_model(folder.path()).status();
    EXPECT_NE(status.message().find(b.message), std::string::npos) << b.name << ": " << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace se
