// The driver under `dense` against its slow twin, on every kind of toy: norms, RoPE by layer, windows, latent
// heads; prompts in one piece and in chunks, a second turn, decode steps.
#include <gtest/gtest.h>

#include <cmath>

#include "sparse/testing/slow_port.h"
#include "sparse/testing/toy_model.h"

namespace se::testing {
namespace {

class DriverTwin : public ::testing::TestWithParam<Toy> {};

// Hidden states grow to about 4 and pass 6 layers at most, each a softmax over f32 scores of size 10: 6 x 10
// roundings of 2^-24 x 4 a layer stay below 2e-5 of the largest value.
TEST_P(DriverTwin, DenseEqualsTheSlowTwin) {
  const ToyModel model(GetParam(), 1, DType::kF32);
  for (int64_t chunk : {150, 16}) {
    Player player(model);
    const auto seq = player.open("dense");
    SlowPort port(model.kv());
    const auto slow = [&](const std::vector<int32_t>& ids) { return last_state(model, port, ids); };
    for (int64_t prompt : {150, 9, 40}) {
      const auto ids = random_ids(uint64_t(prompt), prompt), more = random_ids(uint64_t(prompt) + 1, 20);
      expect_as_twin(player.prefill(*seq, ids, chunk, 21), slow(ids), -1);
      for (size_t i = 0; i < more.size(); ++i)
        expect_as_twin(player.decode(*seq, more[i]), slow({more[i]}), int64_t(i));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Toys,
                         DriverTwin,
                         ::testing::Values(Toy::kPlain, Toy::kNorms, Toy::kWindows, Toy::kLatent),
                         [](const auto& toy) { return std::string(to_string(toy.param)); });

}  // namespace
}  // namespace se::testing
