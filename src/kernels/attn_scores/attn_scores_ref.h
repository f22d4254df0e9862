// kernels/attn_scores/attn_scores_ref.h -- the slow twin, in double, one ordinal at a time. For tests.
#pragma once
#include "kernels/attn_scores/attn_scores.h"

namespace se::ref {

void attn_scores(const ScoreSpec& spec,
                 const TensorView& logits,
                 std::span<const int64_t> last,
                 float scale,
                 int kv_heads,
                 const TensorView& out);

}  // namespace se::ref
