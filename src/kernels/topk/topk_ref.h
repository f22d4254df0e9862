// kernels/topk/topk_ref.h -- the slow twins: a stable sort, and each window looked at. For tests.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace se::ref {

void top_k(std::span<const float> score, int64_t k, std::vector<int32_t>& out);
void max_pool(std::span<const float> score, int width, std::span<float> out);

}  // namespace se::ref
