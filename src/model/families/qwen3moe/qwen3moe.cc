#include "model/families/qwen3moe/qwen3moe.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace se::qwen3moe {

void Qwen3Moe::layer(int layer,
                     const TensorView& x,
                     AttentionPort& port,
                     Compute compute,
                     Arena& scratch,
                     Stream& stream) const {
  const LayerWeights& w = layers_[size_t(layer)];
  const float eps = frame_.shape.norm_eps;
  const Work work{compute, scratch, stream};
  const Arena::Mark mark = scratch.mark();
  const TensorView h = scratch.take(DType::kF32, {x.shape[0], x.shape[1]});  // normed
  const TensorView y = scratch.take(DType::kF32, {x.shape[0], x.shape[1]});  // a branch's result

  rms_norm(x, w.attn_norm, eps, h, stream);
  attention(layer, h, w.attention, port, y, work);
  add(x, y, x, stream);

  rms_norm(x, w.ffn_norm, eps, h, stream);
  if (w.sparse) {
    moe(h, w.moe, y, work);
  } else {
    mlp(h, w.mlp, Activation::kSilu, y, work);
  }
  add(x, y, x, stream);
  scratch.rewind(mark);
}

}  // namespace se::qwen3moe
