#include "model/blocks/moe.h"

#include "base/fmt.h"
#include "kernels/elementwise/elementwise.h"

namespace se {

Result<MoeWeights> read_moe(Weights& tensors,
                            const HyperParameters& h,
                            int layer,
                            const MoeRouting& routing) {
  const auto name = [&](const char* role) { return format("blk.{}.{}", layer, role); };
  const MoeConfig& m = h.moe;
  MoeWeights w;
  w.routing = routing;
  SE_ASSIGN(w.router, tensors.projection(name("ffn_gate_inp.weight"), m.experts, h.hidden));
  SE_ASSIGN(w.bias, tensors.vector_if_any(name("exp_probs_b.bias"), m.experts));
  SE_ASSIGN(const std::vector<Weight> gate,
            tensors.experts(name("ffn_gate_exps.weight"), m.experts, m.ffn, h.hidden));
  SE_ASSIGN(const std::vector<Weight> up,
            tensors.experts(name("ffn_up_exps.weight"), m.experts, m.ffn, h.hidden));
  SE_ASSIGN(const std::vector<Weight> down,
            tensors.experts(name("ffn_down_exps.weight"), m.experts, h.hidden, m.ffn));
  for (size_t e = 0; e < gate.size(); ++e) w.experts.push_back({gate[e], up[e], down[e]});
  if (m.shared_ffn > 0) {
    SE_ASSIGN(w.shared, read_mlp(tensors, layer, h.hidden, m.shared_ffn, "_shexp"));
  }
  return w;
}

void moe(const TensorView& h, const MoeWeights& w, const TensorView& out, const Work& work) {
  const int64_t tokens = h.shape[0];
  Arena& scratch = work.scratch;
  const Arena::Mark mark = scratch.mark();
  const TensorView logits = scratch.take(DType::kF32, {tokens, w.router.shape[0]});
  const TensorView ids = scratch.take(DType::kI32, {tokens, w.routing.used});
  const TensorView weights = scratch.take(DType::kF32, {tokens, w.routing.used});
  linear(h, w.router, {}, logits, Compute::kExact, scratch, work.stream);
  moe_route(logits, w.bias, w.routing, ids, weights, work.stream);
  moe_experts(h, ids, weights, w.experts, out, work.compute, scratch, work.stream);
  if (!w.shared.gate.empty()) {
    const TensorView shared = scratch.take(DType::kF32, {tokens, h.shape[1]});
    mlp(h, w.shared, Activation::kSilu, shared, work);
    add(out, shared, out, work.stream);
  }
  scratch.rewind(mark);
}

}  // namespace se
