// kernels/moe/moe_ref.h -- slow twins of moe.h, one token after the other in double: for tests.
#pragma once
#include <vector>

#include "kernels/moe/moe.h"

namespace se {

struct RoutedRow {
  std::vector<int32_t> ids;
  std::vector<double> weights;
};
// One token: logits [experts], bias [experts] or empty. By sorting, where moe_route searches.
RoutedRow moe_route_ref(std::span<const float> logits, std::span<const float> bias, const MoeRouting& r);

// One token: x [hidden] -> out [hidden], and to `error` [hidden] what f32 arithmetic may add, first order, in
// units of its epsilon: every product of n terms c(n) = n / 16 + 6 times the sum of its magnitudes (16 lanes,
// folded), activations 4 times, passed on through the derivatives (|silu'| <= 1.1).
void moe_experts_ref(std::span<const float> x,
                     std::span<const int32_t> ids,
                     std::span<const float> weights,
                     std::span<const Expert> experts,
                     std::vector<double>& out,
                     std::vector<double>& error);

}  // namespace se
