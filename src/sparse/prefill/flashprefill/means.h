// means.h -- mean keys and values of the full blocks of a row, past and present.
#pragma once
#include "sparse/contract.h"

namespace se::flashprefill {

// Adds what the row holds of blocks 0 .. blocks - 1 of `block` tokens (its past as stored, the present from
// packed token `first` on) and divides: k, v f32 [kv_heads, >= blocks, dim], zero before. Sums in f32,
// ascending.
void block_means(int layer,
                 int64_t row,
                 int64_t first,
                 const Present& present,
                 int64_t block,
                 int64_t blocks,
                 const TensorView& k,
                 const TensorView& v,
                 DeviceStep& s);

}  // namespace se::flashprefill
