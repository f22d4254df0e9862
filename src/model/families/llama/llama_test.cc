// The Llama graph against a double reference that shares no code with it.
#include "model/families/llama/llama.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "device/cpu/thread_pool.h"
#include "model/checkpoint.h"
#include "model/families/llama/llama_reference.h"
#include "model/testing/forward.h"
#include "model/testing/plain_port.h"
#include "model/testing/tiny_llama.h"

namespace se::llama {
namespace {

struct Case {
  const char* name;
  TinyLlamaOptions options;
  DType kv = DType::kF16;  // of the default mode
};

TinyLlamaOptions with(std::vector<DType> types, DType embedding, auto change) {
  TinyLlamaOptions o;
  o.types = std::move(types), o.embedding = embedding;
  change(o);
  return o;
}

std::vector<Case> cases() {
  const auto same = [](TinyLlamaOptions&) {};
  return {
      {"F32", with({DType::kF32}, DType::kF32, same), DType::kF32},
      {"F16Untied", with({DType::kF16}, DType::kF16, [](auto& o) { o.tied = false; })},
      {"Q8", with({DType::kQ8_0}, DType::kQ8_0, [](auto& o) { o.head_dim = 32; })},
      {"Q4Head64", with({DType::kQ4_1}, DType::kQ8_0, [](auto& o) { o.head_dim = 64; })},
      {"MixedAllKeys",
       with({DType::kQ4_1, DType::kF16, DType::kQ8_0, DType::kF32},
            DType::kQ4_1,
            [](auto& o) { o.rope_divisors = o.biases = true, o.rope_linear = 4, o.tied = false; })},
      {"EveryHeadItsOwn",
       with({DType::kF32}, DType::kF32, [](auto& o) { o.kv_heads = 4, o.rope_theta = 5e5f; }),
       DType::kF32},
  };
}

class LlamaGraph : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const TempFile file(tiny_llama(GetParam().options).bytes());
    auto loaded = load_model(file.path());
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    loaded_ = loaded.take();
    model_ = loaded_.model.get();
    Rng rng(11);
    for (int i = 0; i < 40; ++i) ids_.push_back(int32_t(rng.below(kTinyVocab)));
  }
  // The whole sequence in chunks.
  std::vector<float> run(Compute compute, size_t chunk) {
    PlainPort port(model_->kv(compute));
    std::vector<float> logits;
    for (size_t at = 0; at < ids_.size(); at += chunk) {
      const auto part = std::span(ids_).subspan(at, std::min(chunk, ids_.size() - at));
      const std::vector<float> rows = forward(*model_, part, port, compute, stream_);
      logits.insert(logits.end(), rows.begin(), rows.end());
    }
    return logits;
  }

  ThreadPool pool_{2};
  Stream stream_{pool_};
  LoadedModel loaded_;
  const Model* model_ = nullptr;
  std::vector<int32_t> ids_;
};

// f32 sums of up to 256 products in 3 layers: a few hundred roundings of 6e-8 each.
TEST_P(LlamaGraph, ExactModeEqualsTheReference) {
  const std::vector<double> want = Reference(GetParam().options).forward(ids_);
  const std::vector<float> got = run(Compute::kExact, ids_.size());
  ASSERT_EQ(got.size(), want.size());
  double error = 0, peak = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error = std::max(error, std::fabs(double(got[i]) - want[i]));
    peak = std::max(peak, std::fabs(want[i]));
  }
  EXPECT_LE(error, 2e-5 * peak);
}

// Mean KL(reference || model) in nats.
double mean_kl(const std::vector<double>& want, const std::vector<float>& got) {
  const auto log_sum = [](auto* x) {
    double sum = 0;
    for (int i = 0; i < kTinyVocab; ++i) sum += std::exp(double(x[i]));
    return std::log(sum);
  };
  double kl = 0;
  for (size_t row = 0; row < want.size(); row += kTinyVocab) {
    const double a = log_sum(&want[row]), b = log_sum(&got[row]);
    for (size_t i = row; i < row + kTinyVocab; ++i)
      kl += std::exp(want[i] - a) * (want[i] - a - double(got[i]) + b);
  }
  return kl / (double(want.size()) / kTinyVocab);
}

TEST_P(LlamaGraph, DefaultModeStaysCloseToTheReference) {
  const double kl = mean_kl(Reference(GetParam().options).forward(ids_), run(Compute::kDefault, ids_.size()));
  EXPECT_GE(kl, -1e-9);
  EXPECT_LE(kl, 5e-3);
}

TEST_P(LlamaGraph, PrefillEqualsDecodeBitForBit) {
  for (const Compute compute : {Compute::kDefault, Compute::kExact}) {
    const std::vector<float> whole = run(compute, ids_.size());
    for (const size_t chunk : {1, 7, 32}) EXPECT_EQ(run(compute, chunk), whole) << "chunks of " << chunk;
  }
}

TEST_P(LlamaGraph, TellsTheKvSideItsShape) {
  const TinyLlamaOptions& o = GetParam().options;
  EXPECT_EQ(model_->kv(Compute::kExact).dtype, DType::kF32);
  const ModelKv kv = model_->kv(Compute::kDefault);
  EXPECT_EQ(kv.dtype, GetParam().kv);
  ASSERT_EQ(kv.layers.size(), size_t(o.layers));
  const LayerKv& layer = kv.layers.back();
  EXPECT_EQ(layer.q_heads, o.q_heads);
  EXPECT_EQ(layer.kv_heads, o.kv_heads);
  EXPECT_EQ(layer.k_dim, o.head_dim);
  EXPECT_EQ(layer.v_dim, o.head_dim);
  EXPECT_FLOAT_EQ(layer.scale, 1 / std::sqrt(float(o.head_dim)));
  EXPECT_TRUE(layer.qk.interleaved);
  EXPECT_EQ(layer.qk.rope.numel(), o.head_dim / 2);
}

INSTANTIATE_TEST_SUITE_P(Tiny, LlamaGraph, ::testing::ValuesIn(cases()), [](const auto& made) {
  return std::string(made.param.name);
});

}  // namespace
}  // namespace se::llama
