// sparse/testing/test_model.h -- what the conformance suite runs: anything that turns tokens into hidden
// states layer by layer through an AttentionPort.
#pragma once
#include <span>
#include <vector>

#include "kernels/attention/model_kv.h"

namespace se::testing {

class TestModel {
 public:
  virtual ~TestModel() = default;
  virtual const ModelKv& kv() const = 0;
  virtual int hidden() const = 0;
  virtual int32_t vocab() const = 0;
  virtual void embed(std::span<const int32_t> ids, std::vector<float>& x) const = 0;  // [ids, hidden]
  // x [tokens, hidden] in and out. A token's row depends on that row alone, except through the port.
  virtual void layer(int l, std::span<float> x, AttentionPort& port, Stream& stream) const = 0;
  int layers() const { return int(kv().layers.size()); }
};

}  // namespace se::testing
