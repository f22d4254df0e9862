// kernels/topk/topk.h -- deterministic selection: score descending, then lower index
// (methods-dynamic.md 1.1).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace se {

// The indices of the k best of score[0 .. n), ascending; all of them if k >= n; k <= 0: none. -0 ranks as +0,
// NaN last (after -inf). O(n).
void top_k(std::span<const float> score, int64_t k, std::vector<int32_t>& out);

// Max-pooling, stride 1, odd width, same length; out of range is ignored. out must not alias score.
void max_pool(std::span<const float> score, int width, std::span<float> out);

}  // namespace se
