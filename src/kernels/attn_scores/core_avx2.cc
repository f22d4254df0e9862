#include "kernels/attn_scores/core.h"
// The order matters: the lanes, then what is written in them.
#include "kernels/attention/vec8_avx2.inl"
//
#include "kernels/attention/exp8.inl"
//
#include "kernels/attn_scores/core.inl"

namespace se::cpu {

const ScoresCore kScoresAvx2 = {largest, exp_sum, divide, add, raise};

}  // namespace se::cpu
