#include "kernels/sample/logit_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace se {
namespace {

constexpr float kOut = -INFINITY;
using Floats = std::vector<float>;

Floats applied(const LogitRules& rules, const TokenHistory& history, Floats logits) {
  apply(rules, history, logits);
  return logits;
}

TokenHistory history(std::vector<int32_t> prompt, std::vector<int32_t> answer) {
  TokenHistory h;
  h.add_prompt(prompt);
  for (int32_t id : answer) h.add_answer(id);
  return h;
}

TEST(LogitRules, NoRuleChangesNothing) {
  EXPECT_FALSE(LogitRules{}.any());
  const Floats logits{1, -2, 3, kOut};
  EXPECT_EQ(applied({}, history({0, 1}, {2, 2}), logits), logits);
}

TEST(LogitRules, RepetitionShrinksWhatWasSeenOnEitherSideOfZero) {
  LogitRules r;
  r.repetition = 2;
  EXPECT_EQ(applied(r, history({0}, {1}), {4, -4, 4, -4}), (Floats{2, -8, 4, -4}));
}

TEST(LogitRules, FrequencyAndPresenceCountTheAnswerOnly) {
  LogitRules r;
  r.frequency = 0.5f, r.presence = 1;
  EXPECT_EQ(applied(r, history({0, 3}, {1, 1, 3}), {1, 1, 1, 1}), (Floats{1, -1, 1, -0.5f}));
}

TEST(LogitRules, BiasAllowedAndLeastLength) {
  LogitRules r;
  r.bias = {{1, -100}, {2, 5}}, r.allowed = {1, 2}, r.late = {2}, r.min_tokens = 2;
  EXPECT_EQ(applied(r, history({}, {1}), {1, 1, 1, 1}), (Floats{kOut, -99, kOut, kOut}));
  EXPECT_EQ(applied(r, history({}, {1, 1}), {1, 1, 1, 1}), (Floats{kOut, -99, 6, kOut}));
}

TEST(LogitRules, BadSequencesAreOutOnlyOnceBegun) {
  LogitRules r;
  r.bad = {{3}, {1, 2}, {2, 2, 0}};
  EXPECT_EQ(applied(r, history({1}, {}), {1, 1, 1, 1}), (Floats{1, 1, 1, kOut}));  // prompts begin nothing
  EXPECT_EQ(applied(r, history({}, {1}), {1, 1, 1, 1}), (Floats{1, 1, kOut, kOut}));
  EXPECT_EQ(applied(r, history({}, {2, 2}), {1, 1, 1, 1}), (Floats{kOut, 1, 1, kOut}));
}

// Against a slow twin that walks the whole vocabulary and counts anew.
TEST(LogitRules, EqualsThePlainFormula) {
  Rng rng(7);
  for (int round = 0; round < 50; ++round) {
    Floats logits(97);
    for (float& x : logits) x = rng.normal() * 3;
    std::vector<int32_t> prompt, answer;
    for (int i = 0; i < 40; ++i) prompt.push_back(int32_t(rng.below(97)));
    for (int i = 0; i < 30; ++i) answer.push_back(int32_t(rng.below(97)));
    LogitRules r;
    r.repetition = 1.3f, r.frequency = 0.25f, r.presence = -0.5f;
    Floats want = logits;
    for (int32_t id = 0; id < 97; ++id) {
      const auto times = std::count(answer.begin(), answer.end(), id);
      float& x = want[size_t(id)];
      if (times > 0 || std::count(prompt.begin(), prompt.end(), id) > 0) x = x > 0 ? x / 1.3f : x * 1.3f;
      if (times > 0) x -= 0.25f * float(times) + -0.5f;
    }
    EXPECT_EQ(applied(r, history(prompt, answer), logits), want);
  }
}

}  // namespace
}  // namespace se
