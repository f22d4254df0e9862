#include "model/blocks/mlp.h"

#include "base/fmt.h"
#include "kernels/elementwise/elementwise.h"

namespace se {

Result<MlpWeights> read_mlp(Weights& tensors, int layer, int64_t hidden, int64_t ffn, const char* suffix) {
  const auto name = [&](const char* role) { return format("blk.{}.ffn_{}{}.weight", layer, role, suffix); };
  MlpWeights w;
  SE_ASSIGN(w.gate, tensors.projection(name("gate"), ffn, hidden));
  SE_ASSIGN(w.up, tensors.projection(name("up"), ffn, hidden));
  SE_ASSIGN(w.down, tensors.projection(name("down"), hidden, ffn));
  return w;
}

void mlp(const TensorView& h,
         const MlpWeights& w,
         Activation activation,
         const TensorView& out,
         const Work& work) {
  const int64_t tokens = h.shape[0], ffn = w.gate.shape[0];
  const Arena::Mark mark = work.scratch.mark();
  const TensorView gate = work.scratch.take(DType::kF32, {tokens, ffn});
  const TensorView up = work.scratch.take(DType::kF32, {tokens, ffn});
  const Product both[] = {{w.gate, {}, gate}, {w.up, {}, up}};
  linear(h, both, work.compute, work.scratch, work.stream);
  (activation == Activation::kSilu ? silu_mul : gelu_tanh_mul)(gate, up, gate, work.stream);
  linear(gate, w.down, {}, out, work.compute, work.scratch, work.stream);
  work.scratch.rewind(mark);
}

}  // namespace se
