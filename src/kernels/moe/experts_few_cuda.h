// kernels/moe/experts_few_cuda.h -- moe_experts for few rows, where a second kernel's start and its first
// trip to memory count.
#pragma once
#include "kernels/moe/moe_cuda.h"

namespace se::cuda {

inline constexpr int kFewPairs = kMoeProducts / 2;  // rows * top_k, at most

// Whether it takes this case; if so, it is launched. Its blocks wait for one another.
bool moe_experts_few(const ExpertParams& params, Stream& stream);

}  // namespace se::cuda
