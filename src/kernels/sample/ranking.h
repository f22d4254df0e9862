// kernels/sample/ranking.h -- the order of tokens: higher logit first, then lower id; NaN never ranks.
// Internal.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace se::sample_detail {

// Ids of the n best of logits, best first; fewer if there are fewer numbers. O(V) plus the heap of n.
std::vector<int32_t> best(std::span<const float> logits, int64_t n);

}  // namespace se::sample_detail
