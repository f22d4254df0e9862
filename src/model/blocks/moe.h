// model/blocks/moe.h -- a mixture of experts in place of an MLP: router, experts, the shared expert
// (spec/models.md 2.5).
#pragma once
#include <vector>

#include "kernels/moe/moe.h"
#include "model/blocks/mlp.h"

namespace se {

struct MoeWeights {
  TensorView router, bias;      // [experts, hidden]; f32 [experts] to choose by, or empty
  std::vector<Expert> experts;  // of ffn MoeConfig::ffn
  MlpWeights shared;            // added for every token; empty: none
  MoeRouting routing;
};

// Tensors of blk.LAYER as MoeConfig describes them; errors as Weights'.
Result<MoeWeights> read_moe(Weights& tensors, const HyperParameters& h, int layer, const MoeRouting& routing);

// h, out f32 [tokens, hidden], no alias. The router is computed in f32 whatever the mode.
void moe(const TensorView& h, const MoeWeights& w, const TensorView& out, const Work& work);

}  // namespace se
