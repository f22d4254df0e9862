#include "kernels/sample/logit_rules.h"

#include <algorithm>
#include <limits>

namespace se {
namespace {
constexpr float kOut = -std::numeric_limits<float>::infinity();

// Whether the answer ends with all of `bad` but its last token.
bool is_begun(std::span<const int32_t> bad, std::span<const int32_t> answer) {
  const size_t n = bad.size() - 1;
  return answer.size() >= n && std::equal(answer.end() - ptrdiff_t(n), answer.end(), bad.begin());
}

}  // namespace

bool LogitRules::any() const {
  return repetition != 1 || frequency != 0 || presence != 0 || !bias.empty() || !allowed.empty() ||
         !bad.empty() || (min_tokens > 0 && !late.empty());
}

void TokenHistory::add_prompt(std::span<const int32_t> ids) {
  for (int32_t id : ids) times_.try_emplace(id, 0);
}

void TokenHistory::add_answer(int32_t id) {
  ++times_[id];
  answer_.push_back(id);
}

void apply(const LogitRules& rules, const TokenHistory& history, std::span<float> logits) {
  if (!rules.allowed.empty()) {
    std::vector<std::pair<int32_t, float>> stay;
    for (int32_t id : rules.allowed) stay.emplace_back(id, logits[size_t(id)]);
    std::fill(logits.begin(), logits.end(), kOut);
    for (const auto& [id, logit] : stay) logits[size_t(id)] = logit;
  }
  for (const auto& bad : rules.bad) {
    if (!bad.empty() && is_begun(bad, history.answer_)) logits[size_t(bad.back())] = kOut;
  }
  for (const auto& [id, value] : rules.bias) logits[size_t(id)] += value;
  if (int64_t(history.answer_.size()) < rules.min_tokens) {
    for (int32_t id : rules.late) logits[size_t(id)] = kOut;
  }
  if (rules.repetition == 1 && rules.frequency == 0 && rules.presence == 0) return;
  for (const auto& [id, times] : history.times_) {
    float& logit = logits[size_t(id)];
    if (rules.repetition != 1) logit = logit > 0 ? logit / rules.repetition : logit * rules.repetition;
    if (times > 0) logit -= rules.frequency * float(times) + rules.presence;
  }
}

}  // namespace se
