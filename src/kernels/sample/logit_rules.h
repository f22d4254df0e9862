// kernels/sample/logit_rules.h -- what a request says of single tokens, applied to the logits before
// sampling. Order and meaning are vLLM's (spec: serving.md A.4): allowed ids, bad words, bias, least length,
// then the repetition, frequency and presence penalties. Log-probabilities that are reported stay those of
// the raw logits.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace se {

struct LogitRules {
  float repetition = 1;  // > 0. Tokens of prompt or answer: a logit over 0 is divided by it, others
                         // are multiplied
  float frequency = 0, presence = 0;            // tokens of the answer: logit -= frequency * times + presence
  std::vector<std::pair<int32_t, float>> bias;  // added; ids inside the vocabulary
  std::vector<int32_t> allowed;                 // empty: all; else every other token is out
  std::vector<std::vector<int32_t>> bad;        // sequences whose last token is out after the others
  std::vector<int32_t> late;                    // out while the answer has fewer than min_tokens
  int64_t min_tokens = 0;

  bool any() const;  // false: apply() would change nothing
};

// The tokens of one request, as the penalties see them.
class TokenHistory {
 public:
  void add_prompt(std::span<const int32_t> ids);
  void add_answer(int32_t id);
  std::span<const int32_t> answer() const { return answer_; }

 private:
  friend void apply(const LogitRules&, const TokenHistory&, std::span<float>);
  std::unordered_map<int32_t, int32_t> times_;  // in the answer; 0: in the prompt only
  std::vector<int32_t> answer_;
};

// In place; a token that is out gets -inf. O(vocab) with an allow list, else O(tokens seen + rules).
void apply(const LogitRules& rules, const TokenHistory& history, std::span<float> logits);

}  // namespace se
