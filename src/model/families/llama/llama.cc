#include "model/families/llama/llama.h"

#include <cmath>

#include "kernels/elementwise/elementwise.h"
#include "kernels/embed/embed.h"
#include "kernels/linear/linear.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace se::llama {
namespace {

// The dtype K and V are stored in: what the projections that make them are precise to.
DType kv_dtype(const ModelWeights& weights, Compute compute) {
  if (compute == Compute::kExact) return DType::kF32;
  DType dtype = weights.layers.front().wk.dtype;
  for (const LayerWeights& w : weights.layers) {
    for (const TensorView* t : {&w.wq, &w.wk, &w.wv, &w.wo, &w.gate, &w.up, &w.down}) {
      if (block_elements(t->dtype) > 1) dtype = DType::kF16;  // a quantised file
    }
  }
  return dtype;
}

}  // namespace

Llama::Llama(ModelShape shape, ModelWeights weights, bool interleaved)
    : shape_(std::move(shape)), weights_(std::move(weights)), interleaved_(interleaved) {}

ModelKv Llama::kv(Compute compute) const {
  LayerKv layer;
  layer.q_heads = shape_.q_heads, layer.kv_heads = shape_.kv_heads;
  layer.k_dim = layer.v_dim = shape_.head_dim;
  layer.scale = 1.0f / std::sqrt(float(shape_.head_dim));
  // Read-only in effect: the port rotates by these, it does not write them.
  layer.qk.rope =
      TensorView::of(const_cast<float*>(weights_.rope.data()), DType::kF32, {int64_t(weights_.rope.size())});
  layer.qk.interleaved = interleaved_;
  ModelKv kv;
  kv.layers.assign(size_t(shape_.layers), layer);
  kv.dtype = kv_dtype(weights_, compute);
  return kv;
}

void Llama::embed(std::span<const int32_t> ids, const TensorView& x, Stream& stream) const {
  se::embed(ids, weights_.embedding, 1.0f, x, stream);
}

void Llama::layer(int layer,
                  const TensorView& x,
                  AttentionPort& port,
                  Compute compute,
                  Arena& scratch,
                  Stream& stream) const {
  const LayerWeights& w = weights_.layers[size_t(layer)];
  const int64_t tokens = x.shape[0], q_dim = w.wq.shape[0], kv_dim = w.wk.shape[0];
  const Arena::Mark mark = scratch.mark();
  const TensorView h = scratch.take(DType::kF32, {tokens, shape_.hidden});  // normed, then a branch's result

  rms_norm(x, w.attn_norm, shape_.norm_eps, h, stream);
  const TensorView q = scratch.take(DType::kF32, {tokens, q_dim});
  const TensorView k = scratch.take(DType::kF32, {tokens, kv_dim});
  const TensorView v = scratch.take(DType::kF32, {tokens, kv_dim});
  const TensorView o = scratch.take(DType::kF32, {tokens, q_dim});
  linear(h, w.wq, w.bq, q, compute, scratch, stream);
  linear(h, w.wk, w.bk, k, compute, scratch, stream);
  linear(h, w.wv, w.bv, v, compute, scratch, stream);
  port.attend(layer, q, k, v, o, stream);
  linear(o, w.wo, w.bo, h, compute, scratch, stream);
  add(x, h, x, stream);

  rms_norm(x, w.ffn_norm, shape_.norm_eps, h, stream);
  const TensorView gate = scratch.take(DType::kF32, {tokens, shape_.ffn});
  const TensorView up = scratch.take(DType::kF32, {tokens, shape_.ffn});
  linear(h, w.gate, {}, gate, compute, scratch, stream);
  linear(h, w.up, {}, up, compute, scratch, stream);
  silu_mul(gate, up, gate, stream);
  linear(gate, w.down, {}, h, compute, scratch, stream);
  add(x, h, x, stream);
  scratch.rewind(mark);
}

void Llama::head(
    const TensorView& x, const TensorView& logits, Compute compute, Arena& scratch, Stream& stream) const {
  rms_norm(x, weights_.norm, shape_.norm_eps, x, stream);
  linear(x, weights_.head, {}, logits, compute, scratch, stream);
}

}  // namespace se::llama
