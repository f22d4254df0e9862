#include "kernels/attention/core.h"
// The order matters: the lanes, then what is written in them.
#include "kernels/attention/vec8_avx2.inl"
//
#include "kernels/attention/exp8.inl"
//
#include "kernels/attention/core.inl"

namespace se::cpu {

const AttentionCore kCoreAvx2 = {dots, absorb, add_rows, add_split, finish, merge, widen, 3};

}  // namespace se::cpu
