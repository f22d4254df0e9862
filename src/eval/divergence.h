// eval/divergence.h -- how far a plan's next-token distribution is from dense's.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace se::eval {

// log softmax of logits f32 [vocab], sums in double.
std::vector<float> log_softmax(std::span<const float> logits);

struct Divergence {
  double kl = 0;   // sum over tokens of p (log p - log q), nats; p is dense's
  double nll = 0;  // -log q of the text's token
  bool same_top = false;
};
// log_p: log_softmax of dense's logits; logits: the plan's, raw; token: the one that stands in the text.
Divergence diverge(std::span<const float> log_p, std::span<const float> logits, int32_t token);

}  // namespace se::eval
