#include "model/families/gemma3/gemma3.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace se::gemma3 {

void Gemma3::layer(int layer,
                   const TensorView& x,
                   AttentionPort& port,
                   Compute compute,
                   Arena& scratch,
                   Stream& stream) const {
  const LayerWeights& w = layers_[size_t(layer)];
  const float eps = frame_.shape.norm_eps;
  const Work work{compute, scratch, stream};
  const Arena::Mark mark = scratch.mark();
  const TensorView h = scratch.take(DType::kF32, {x.shape[0], x.shape[1]});  // normed, then a branch's result

  rms_norm(x, w.attn_norm, eps, h, stream);
  attention(layer, h, w.attention, port, h, work);
  rms_norm(h, w.attn_post_norm, eps, h, stream);
  add(x, h, x, stream);

  rms_norm(x, w.ffn_norm, eps, h, stream);
  mlp(h, w.mlp, Activation::kGeluTanh, h, work);
  rms_norm(h, w.ffn_post_norm, eps, h, stream);
  add(x, h, x, stream);
  scratch.rewind(mark);
}

}  // namespace se::gemma3
