// bounds.h -- the bounds of a unit's keys.
#pragma once
#include <cstdint>

#include "device/tensor.h"
#include "sparse/read/quest/score.h"

namespace se::quest {

// lo, hi [dim], of `type`: the least and the greatest of `tokens` keys, channel by channel, rounded outwards
// where the type is narrower than the keys. x f32 [tokens, dim] with `stride` floats between tokens.
void bound_keys(const float* x, int64_t stride, int64_t tokens, int64_t dim, DType type, void* lo, void* hi);

Narrow narrow_of(DType type);

}  // namespace se::quest
