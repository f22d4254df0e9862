// sparse/testing/slow_port.h -- the driver's slow twin for dense attention: one sequence, every key kept as a
// plain vector, norms, RoPE, windows, latent heads (expanded) and softmax as they are written in papers, in
// double. It shares no code with the kernels.
#pragma once
#include <span>
#include <vector>

#include "kernels/attention/model_kv.h"
#include "sparse/testing/test_model.h"

namespace se::testing {

class SlowPort : public AttentionPort {
 public:
  explicit SlowPort(ModelKv kv) : kv_(std::move(kv)), keys_(kv_.layers.size()), values_(kv_.layers.size()) {}
  // Positions go on where the layer's last call ended. K and V are not rounded: for models of dtype F32.
  void attend(int layer,
              const TensorView& q,
              const TensorView& k,
              const TensorView& v,
              const TensorView& out,
              Stream& stream) override;

 protected:
  using Row = std::vector<double>;
  struct Column {  // what a query attends: a key and a value that count `times`
    const Row *k, *v;
    double times = 1;
  };
  // Of query head a of token t of this call, whose position is `position`. Here: what the layer's kind lets
  // it see.
  virtual std::vector<Column> columns(int layer, size_t t, int a, size_t position);

  ModelKv kv_;
  std::vector<std::vector<std::vector<Row>>> keys_, values_;  // [layer][token][head of the keys as attended]
  std::vector<std::vector<Row>> queries_;                     // of this call [token][head]
};

// The hidden state of the last of `ids`, which go on where `port` is.
std::vector<float> last_state(const TestModel& model, SlowPort& port, std::span<const int32_t> ids);

// got is want within 2e-5 of its largest value: what f32 softmaxes leave of a few layers (twin_test.cc).
void expect_as_twin(std::span<const float> got, std::span<const float> want, int64_t step);

}  // namespace se::testing
