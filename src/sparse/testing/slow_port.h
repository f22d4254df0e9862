// sparse/testing/slow_port.h -- the driver's slow twin for dense attention: one sequence, every key kept as a
// plain vector, norms, RoPE, windows, latent heads (expanded) and softmax as they are written in papers, in
// double. It shares no code with the kernels.
#pragma once
#include <vector>

#include "kernels/attention/model_kv.h"

namespace se::testing {

class SlowPort final : public AttentionPort {
 public:
  explicit SlowPort(ModelKv kv) : kv_(std::move(kv)), keys_(kv_.layers.size()), values_(kv_.layers.size()) {}
  // Positions go on where the layer's last call ended. K and V are not rounded: for models of dtype F32.
  void attend(int layer,
              const TensorView& q,
              const TensorView& k,
              const TensorView& v,
              const TensorView& out,
              Stream& stream) override;

 private:
  using Row = std::vector<double>;
  ModelKv kv_;
  std::vector<std::vector<std::vector<Row>>> keys_, values_;  // [layer][token][head of the keys as attended]
};

}  // namespace se::testing
