#include "eval/divergence.h"

#include <algorithm>
#include <cmath>

namespace se::eval {
namespace {

double log_sum_exp(std::span<const float> x) {
  const double max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (float v : x) sum += std::exp(double(v) - max);
  return max + std::log(sum);
}

}  // namespace

std::vector<float> log_softmax(std::span<const float> logits) {
  const double z = log_sum_exp(logits);
  std::vector<float> out(logits.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = float(double(logits[i]) - z);
  return out;
}

Divergence diverge(std::span<const float> log_p, std::span<const float> logits, int32_t token) {
  const double z = log_sum_exp(logits);
  Divergence d;
  for (size_t i = 0; i < log_p.size(); ++i) {
    if (log_p[i] < -30) continue;  // p below 1e-13
    d.kl += std::exp(double(log_p[i])) * (double(log_p[i]) - (double(logits[i]) - z));
  }
  d.nll = z - double(logits[size_t(token)]);
  d.same_top = std::max_element(log_p.begin(), log_p.end()) - log_p.begin() ==
               std::max_element(logits.begin(), logits.end()) - logits.begin();
  return d;
}

}  // namespace se::eval
