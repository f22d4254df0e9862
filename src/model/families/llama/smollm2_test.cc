// The real checkpoint knows what a small model knows. Registered where models/smollm2.gguf has been fetched.
#include <gtest/gtest.h>

#include <algorithm>

#include "device/cpu/thread_pool.h"
#include "model/checkpoint.h"
#include "model/testing/forward.h"
#include "model/testing/plain_port.h"
#include "text/tokenizer.h"

namespace se {
namespace {

TEST(Smollm2, CompletesAFactInBothModes) {
  auto loaded = load_checkpoint("models/smollm2.gguf");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const Model& model = *loaded->model;
  EXPECT_EQ(model.shape().weight_types, "q4_1 (210), q8_0 (1), f32 (61)");
  EXPECT_EQ(model.shape().layers, 30);
  EXPECT_EQ(model.kv(Compute::kDefault).dtype, DType::kF16);
  auto tokenizer = text::Tokenizer::create(loaded->vocab);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const std::vector<int32_t> ids = tokenizer->encode("The capital of France is");
  ThreadPool pool(available_cores());
  Stream stream(pool);
  for (const Compute compute : {Compute::kDefault, Compute::kExact}) {
    PlainPort port(model.kv(compute));
    const std::vector<float> logits = forward(model, ids, port, compute, stream);
    const auto last = logits.end() - model.shape().vocab;
    const int32_t best = int32_t(std::max_element(last, logits.end()) - last);
    EXPECT_EQ(tokenizer->decode(std::span(&best, 1)), " Paris");
  }
}

}  // namespace
}  // namespace se
