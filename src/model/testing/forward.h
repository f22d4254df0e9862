// model/testing/forward.h -- runs a Model by hand, for tests.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "device/device.h"
#include "model/model.h"

namespace se {

// Logits [ids, vocab] of the next tokens of the port's sequence.
inline std::vector<float> forward(
    const Model& model, std::span<const int32_t> ids, AttentionPort& port, Compute compute, Stream& stream) {
  const int64_t tokens = int64_t(ids.size());
  Arena scratch;
  const TensorView x = scratch.take(DType::kF32, {tokens, model.shape().hidden});
  std::vector<float> logits(size_t(tokens * model.shape().vocab));
  model.embed(ids, x, stream);
  for (int l = 0; l < model.shape().layers; ++l) model.layer(l, x, port, compute, scratch, stream);
  model.head(
      x, TensorView::of(logits.data(), DType::kF32, {tokens, model.shape().vocab}), compute, scratch, stream);
  return logits;
}

}  // namespace se
