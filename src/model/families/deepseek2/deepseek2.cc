#include "model/families/deepseek2/deepseek2.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace se::deepseek2 {
namespace {

// The first `n` channels of each row.
TensorView channels(const TensorView& x, int64_t n) {
  TensorView out = x;
  out.shape[1] = n;
  return out;
}

// out = o(attend(q, [norm(c) | k_rope])) with [c | k_rope] = kv_a h.
void attention(int layer,
               const TensorView& h,
               const LatentAttention& w,
               AttentionPort& port,
               const TensorView& out,
               const Work& work) {
  const auto& [compute, scratch, stream] = work;
  const int64_t tokens = h.shape[0];
  const Arena::Mark mark = scratch.mark();
  TensorView query_in = h;
  if (!w.q_a.empty()) {
    query_in = scratch.take(DType::kF32, {tokens, w.q_a.shape[0]});
    linear(h, w.q_a, {}, query_in, compute, scratch, stream);
    rms_norm(query_in, w.q_a_norm, kLatentEps, query_in, stream);
  }
  const TensorView q = scratch.take(DType::kF32, {tokens, w.q.shape[0]});
  const TensorView k = scratch.take(DType::kF32, {tokens, w.kv_a.shape[0]});
  const TensorView o = scratch.take(DType::kF32, {tokens, w.out_dim});
  linear(query_in, w.q, {}, q, compute, scratch, stream);
  linear(h, w.kv_a, {}, k, compute, scratch, stream);
  const TensorView latent = channels(k, w.kv_a_norm.numel());
  rms_norm(latent, w.kv_a_norm, kLatentEps, latent, stream);
  port.attend(layer, q, k, {}, o, stream);
  linear(o, w.o, {}, out, compute, scratch, stream);
  scratch.rewind(mark);
}

}  // namespace

void Deepseek2::layer(int layer,
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

}  // namespace se::deepseek2
