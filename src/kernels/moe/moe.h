// kernels/moe/moe.h -- mixtures of experts: which experts a token goes to, and their weighted sum
// (spec/models.md 2.5).
#pragma once
#include <span>

#include "kernels/linear/linear.h"

namespace se {

enum class RouterScore : uint8_t {
  kSoftmax,  // over all experts (Qwen; Mixtral)
  kSigmoid   // each expert for itself (DeepSeek-V3, GLM)
};

struct MoeRouting {
  int used = 0;  // experts of a token, <= experts
  RouterScore score = RouterScore::kSoftmax;
  bool normalise = false;           // weights are divided by their sum (+ 1e-20)
  float scale = 1;                  // of the weights, last
  int groups = 1, groups_used = 1;  // equal groups of neighbours; only experts of the best ones are chosen
};

//   logits  f32 [tokens, experts];  bias f32 [experts] or empty: added to a score to choose, not to weigh
//   ids     i32 [tokens, used] out, best first;  weights f32 [tokens, used] out
// A group's rank is the sum of its two best biased scores (DeepSeek-V3 2024, 2.1.2). Ties go to the lower
// index, of experts and of groups; a NaN ranks last. Sums are double: the scores, rounded once to f32, are
// the same bits on every machine but for a libm's last place.
void moe_route(const TensorView& logits,
               const TensorView& bias,
               const MoeRouting& routing,
               const TensorView& ids,
               const TensorView& weights,
               Stream& stream);

// One expert, down(silu(gate x) * up x). Any types that linear() takes, not the same for all experts.
struct Expert {
  Weight gate, up;  // [ffn, hidden]
  Weight down;      // [hidden, ffn]
};

// out[t] = sum_s weights[t, s] * expert[ids[t, s]](x[t])
//   x, out  f32 [tokens, hidden], contiguous, no alias;  ids i32, weights f32 [tokens, used] as moe_route
//           leaves them (an expert at most once in a row)
// Reads the weights of chosen experts only, each once, its tokens batched. A token's sum runs over its
// experts in ascending order, so that its row depends neither on the batch nor on threads.
void moe_experts(const TensorView& x,
                 const TensorView& ids,
                 const TensorView& weights,
                 std::span<const Expert> experts,
                 const TensorView& out,
                 Compute compute,
                 Arena& scratch,
                 Stream& stream);

}  // namespace se
