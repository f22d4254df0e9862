#include "kernels/attention/core.h"
// The order matters: the lanes, then what is written in them.
#include "kernels/attention/vec8_baseline.inl"
//
#include "kernels/attention/exp8.inl"
//
#include "kernels/attention/core.inl"

namespace se::cpu {

const AttentionCore kCoreBaseline = {dots, absorb, add_rows, add_split, finish, merge, widen, 3};

}  // namespace se::cpu
