// bench/kbench/moe_step.h -- one sparse MLP on the device with random weights, and its reference in double.
#pragma once
#include <vector>

#include "kbench/kbench.h"
#include "kernels/moe/moe_cuda.h"

namespace se::kbench {

struct MoeCase {
  int rows = 1, k = 2048, inner = 768, experts = 128, top_k = 8;
  uint64_t seed = 0;  // of x, so of the choice
};

class MoeStep {
 public:
  MoeStep(const MoeCase& c, Bench& b);
  void route(Bench& b) const { cuda::moe_route(route_, b.stream()); }
  void experts(Bench& b) const { cuda::moe_experts(experts_, b.stream()); }
  int distinct() const;         // experts chosen, after experts()
  double expert_bytes() const;  // of the chosen experts' weights, after experts()
  double route_bytes() const { return c_.experts * c_.k * 2.0; }
  double route_error() const;  // of logits, relative to the terms; 1e30 where the choice is not the best
  double experts_error(Bench& b) const;  // of the largest |y - x| of a row
  std::vector<float> y() const { return download<float>(y_.data(), int64_t(c_.rows) * c_.k); }

 private:
  MoeCase c_;
  std::vector<float> x_, norm_;
  cuda::Buffer x_on_, norm_on_, gate_, up_, up_scale_, down_, down_scale_, h_, logits_, tables_, weight_,
      expert_, product_, y_;
  cuda::RouteParams route_;
  cuda::ExpertParams experts_;
};

}  // namespace se::kbench
