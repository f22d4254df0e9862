// Routing and experts against the NumPy oracle (moe_oracle.py).
#include <gtest/gtest.h>

#include <cmath>

#include "base/npy.h"
#include "device/cpu/thread_pool.h"
#include "kernels/moe/moe.h"

namespace se {
namespace {

Npy load(const std::string& name) { return Npy::load("src/kernels/moe/goldens/" + name + ".npy"); }

struct Case {
  const char* name;
  MoeRouting routing;
  bool biased;
};

TEST(MoeGolden, RoutesAndMixesAsTheOracle) {
  ThreadPool pool(2);
  Stream stream(pool);
  Arena scratch;
  auto logits = load("logits").as<float>(), bias = load("bias").as<float>(), x = load("x").as<float>();
  const int64_t tokens = load("logits").shape[0], experts = load("logits").shape[1],
                hidden = load("x").shape[1], ffn = load("gate").shape[1];
  Npy gate = load("gate"), up = load("up"), down = load("down");
  std::vector<Expert> layer;
  for (int64_t e = 0; e < experts; ++e) {
    layer.push_back({TensorView::of(gate.bytes.data(), DType::kF16, {experts, ffn, hidden}).index(e),
                     TensorView::of(up.bytes.data(), DType::kF16, {experts, ffn, hidden}).index(e),
                     TensorView::of(down.bytes.data(), DType::kF16, {experts, hidden, ffn}).index(e)});
  }
  for (const Case& c : {Case{"softmax", {2, RouterScore::kSoftmax, false, 1, 1, 1}, false},
                        Case{"softmax_norm", {3, RouterScore::kSoftmax, true, 1, 1, 1}, false},
                        Case{"sigmoid", {2, RouterScore::kSigmoid, true, 1.8f, 1, 1}, true},
                        Case{"grouped", {3, RouterScore::kSigmoid, true, 2.5f, 4, 2}, true}}) {
    const std::string name = c.name;
    std::vector<int32_t> ids(size_t(tokens * c.routing.used));
    std::vector<float> weights(ids.size()), out(x.size());
    const TensorView id = TensorView::of(ids.data(), DType::kI32, {tokens, c.routing.used});
    const TensorView weight = TensorView::of(weights.data(), DType::kF32, {tokens, c.routing.used});
    moe_route(TensorView::of(logits.data(), DType::kF32, {tokens, experts}),
              c.biased ? TensorView::of(bias.data(), DType::kF32, {experts}) : TensorView{},
              c.routing,
              id,
              weight,
              stream);
    EXPECT_EQ(ids, load(name + "_ids").as<int32_t>()) << name;
    const auto want_weights = load(name + "_weights").as<float>();
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights[i], want_weights[i], 4e-7f) << name;
    moe_experts(TensorView::of(x.data(), DType::kF32, {tokens, hidden}),
                id,
                weight,
                layer,
                TensorView::of(out.data(), DType::kF32, {tokens, hidden}),
                Compute::kExact,
                scratch,
                stream);
    const auto want = load(name + "_out").as<float>();
    // Sums of 32 products of size 0.2, twice: some ten roundings of values below 8.
    for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], want[i], 4e-6f) << name << " " << i;
  }
}

}  // namespace
}  // namespace se
