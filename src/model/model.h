// model/model.h -- a loaded checkpoint that can be run layer by layer. Models know no caches and no sparse
// methods: they call an AttentionPort with q, k, v as projected.
//
// A step is  embed -> layer(0) .. layer(n - 1) -> head ; the engine may stop between layers (layer-major
// prefill). Everything is f32 activations on the CPU; a token's row depends on that token's row alone, except
// through the port.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/attention/model_kv.h"
#include "kernels/linear/linear.h"

namespace se {

struct ModelShape {
  std::string architecture, name;  // "llama", "SmolLM2 135M Instruct"
  int layers = 0, hidden = 0, ffn = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  int64_t vocab = 0, context = 0;  // rows of the head; trained context length
  float norm_eps = 1e-5f;
  double rope_theta = 10000;
  bool tied = false;
  int64_t weight_bytes = 0, parameters = 0;
  std::string weight_types;  // "q4_1 (210), q8_0 (1), f32 (61)", by tensors
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelShape& shape() const = 0;
  // Layers as the KV side sees them. KV dtype: F32 in exact mode, F16 for quantised files, else the
  // checkpoint's.
  virtual ModelKv kv(Compute compute) const = 0;

  // x f32 [tokens, hidden] out.
  virtual void embed(std::span<const int32_t> ids, const TensorView& x, Stream& stream) const = 0;
  // x f32 [tokens, hidden] in and out: one whole block (attention through the port, then the MLP).
  virtual void layer(int layer,
                     const TensorView& x,
                     AttentionPort& port,
                     Compute compute,
                     Arena& scratch,
                     Stream& stream) const = 0;
  // logits f32 [rows, vocab] of x f32 [rows, hidden] (overwritten: final norm in place).
  virtual void head(const TensorView& x,
                    const TensorView& logits,
                    Compute compute,
                    Arena& scratch,
                    Stream& stream) const = 0;
};

}  // namespace se
