// What a request may ask of its answer: rules on tokens, ends, several choices, forced tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "device/cpu/isa.h"
#include "engine/engine_testing.h"

namespace se::testing {
namespace {

Request request(int64_t n = 50) {
  Rng rng(3);
  Request r;
  for (int64_t i = 0; i < n; ++i) r.ids.push_back(kTinyFirstByte + int32_t(rng.below(256)));
  r.plan = "dense", r.max_tokens = 24, r.ignore_eos = true;
  r.sampling.temperature = 1.5f, r.sampling.seed = 11;
  return r;
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::count(ids.begin(), ids.end(), id) > 0;
}

TEST(Choices, DoNotDependOnHowManyThereAreNorOnThePlansAround) {
  auto engine = tiny_engine();
  for (const std::string& plan : test_plans()) {
    Request r = request();
    r.plan = plan;
    const Answer one = engine->run(r);
    r.n = 5;
    const std::vector<Answer> five = engine->run_all(r);
    r.n = 3;
    const std::vector<Answer> three = engine->run_all(r);
    ASSERT_EQ(five.size(), 5u);
    EXPECT_EQ(five[0].ids, one.ids) << plan << five[0].error.message();
    for (size_t c = 0; c < 3; ++c) {
      EXPECT_EQ(three[c].choice, int(c));
      EXPECT_EQ(three[c].ids, five[c].ids) << plan;
      EXPECT_EQ(three[c].usage.kv.read_tokens, five[c].usage.kv.read_tokens) << plan;
    }
    EXPECT_NE(five[1].ids, five[0].ids) << plan;
    EXPECT_EQ(engine->stats().live_pages, 0) << plan;
    r.sampling.temperature = 0;
    const std::vector<Answer> greedy = engine->run_all(r);
    EXPECT_EQ(greedy[1].ids, greedy[0].ids) << plan;
  }
}

TEST(Choices, EndOnceEachWhateverHappens) {
  auto engine = tiny_engine();
  std::mutex m;
  std::map<int, int> ended;
  Callbacks c;
  c.on_done = [&](Answer a) {
    std::lock_guard lock(m);
    ++ended[a.choice];
  };
  Request r = request();
  r.n = 4, r.max_tokens = 400;
  const uint64_t id = engine->submit(r, c);
  engine->cancel(id);
  engine->drain();
  EXPECT_EQ(ended, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}, {3, 1}}));
  r.n = 65;
  const std::vector<Answer> refused = engine->run_all(r);
  ASSERT_EQ(refused.size(), 65u);
  EXPECT_NE(refused[64].error.message().find("n 65: 1 to 64"), std::string::npos);
  EXPECT_EQ(engine->stats().live_pages, 0);
}

TEST(Rules, AllowedBannedAndBiasedTokens) {
  auto engine = tiny_engine();
  Request r = request();
  const int32_t a = kTinyFirstByte + 'a', b = kTinyFirstByte + 'b', c = kTinyFirstByte + 'c';
  r.sampling.allowed_ids = {a, b, c};
  Answer answer = engine->run(r);
  for (int32_t id : answer.ids) EXPECT_TRUE(id == a || id == b || id == c);
  r.sampling.bad_words = {"a", "bb"};
  answer = engine->run(r);
  EXPECT_FALSE(contains(answer.ids, a));
  EXPECT_EQ(answer.text.find("bb"), std::string::npos) << answer.text;
  r.sampling.bad_words.clear();
  r.sampling.logit_bias = {{b, 100}};
  answer = engine->run(r);
  EXPECT_EQ(answer.ids, std::vector<int32_t>(24, b));
  r.sampling.bad_words = {"b"}, r.sampling.allowed_ids = {b};
  answer = engine->run(r);
  EXPECT_EQ(answer.finish, Finish::kError);
  EXPECT_NE(answer.error.message().find("no token is left"), std::string::npos) << answer.error.message();
  EXPECT_EQ(engine->stats().live_pages, 0);
}

TEST(Rules, PenaltiesActOnTheAnswerAndLogprobsStayRaw) {
  auto engine = tiny_engine();
  Request r = request();
  r.sampling.temperature = 0, r.logprobs = 0;
  const Answer plain = engine->run(r);
  r.sampling.logit_bias = {{plain.ids[0], 3}};
  const Answer biased = engine->run(r);
  EXPECT_EQ(biased.logprobs[0].logprob, plain.logprobs[0].logprob);
  r.sampling.logit_bias.clear();
  r.sampling.presence_penalty = 2, r.sampling.frequency_penalty = 2, r.sampling.repetition_penalty = 8;
  const Answer varied = engine->run(r);
  const auto distinct = [](std::vector<int32_t> ids) {
    std::sort(ids.begin(), ids.end());
    return std::unique(ids.begin(), ids.end()) - ids.begin();
  };
  EXPECT_GE(distinct(varied.ids), distinct(plain.ids));
  EXPECT_EQ(distinct(varied.ids), 24);
}

TEST(Ends, StopIdsLeastLengthAndIncludedStops) {
  auto engine = tiny_engine();
  Request r = request();
  const Answer free = engine->run(r);
  const int32_t third = free.ids[2];
  ASSERT_FALSE(contains({free.ids.begin(), free.ids.begin() + 2}, third));
  r.stop_ids = {third};
  Answer a = engine->run(r);
  EXPECT_EQ(a.finish, Finish::kStop);
  EXPECT_EQ(a.ids, std::vector<int32_t>(free.ids.begin(), free.ids.begin() + 3));
  const std::string without = a.text;
  r.include_stop = true;
  EXPECT_EQ(engine->run(r).text, without + engine->detokenize(std::array{third}, true));
  r.min_tokens = 10;
  a = engine->run(r);
  EXPECT_GE(a.ids.size(), 10u);
  EXPECT_FALSE(contains({a.ids.begin(), a.ids.begin() + 9}, third));

  r = request();
  r.sampling.allowed_ids = {kTinyFirstByte + 'x', kTinyFirstByte + 'y'};
  r.stop = {"x", "y"};
  EXPECT_EQ(engine->run(r).text, "");
  r.include_stop = true;
  EXPECT_EQ(engine->run(r).text.size(), 1u);
  r.min_tokens = 6;
  EXPECT_EQ(engine->run(r).ids.size(), 6u);
}

void expect_forced_as_whole(cpu::Isa level, bool exact) {
  cpu::set_isa_for_test(level);
  EngineOptions o;
  o.exact = exact;
  auto engine = tiny_engine(o);
  for (const std::string plan : {"dense", "quest(budget=4096,dense_layers=0)"}) {
    Request r = request(70);
    r.plan = plan;
    const std::vector<int32_t> all = r.ids;
    r.ids.resize(40);
    r.forced.assign(all.begin() + 40, all.end());
    r.logprobs = 0;
    int64_t calls = 0;
    Callbacks c;
    c.on_logits = [&](std::span<const float> logits, int64_t index, int) {
      EXPECT_EQ(index, calls++);
      EXPECT_EQ(int64_t(logits.size()), engine->info().vocab);
    };
    const Answer a = engine->run(r, c);
    EXPECT_EQ(a.ids, r.forced);
    EXPECT_EQ(calls, 30);
    Request whole = request(70);
    whole.max_tokens = 0, whole.prompt_logprobs = 0;
    const Answer w = engine->run(whole);
    for (size_t i = 0; i < 30; ++i)
      EXPECT_NEAR(a.logprobs[i].logprob, w.prompt_logprobs[40 + i].logprob, 1e-4) << plan << " " << i;
  }
}

// At every level of this machine. By default below AVX-512 only: tiles attend prompts in sums of
// another order (docs/adr/0012-prompts-on-tiles.md), which can turn an int8 code of an activation into its
// neighbour.
TEST(Forced, AnswersAreTheGivenTokensAndLogitsThoseOfTheWholeText) {
  const cpu::Isa best = cpu::isa();
  for (const cpu::Isa level : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAmx}) {
    if (level > best) break;
    expect_forced_as_whole(level, true);
    if (level < cpu::Isa::kAvx512) expect_forced_as_whole(level, false);
  }
  cpu::set_isa_for_test(best);
}

TEST(Prompts, AreCutOnlyWhenAsked) {
  EngineOptions o;
  o.context = 64;
  auto engine = tiny_engine(o);
  Request r = request(100);
  r.max_tokens = 1;
  EXPECT_EQ(engine->run(r).finish, Finish::kError);
  r.truncate_prompt = -1;
  EXPECT_EQ(engine->run(r).usage.prompt_tokens, 64);
  r.truncate_prompt = 10;
  const Answer cut = engine->run(r);
  EXPECT_EQ(cut.usage.prompt_tokens, 10);
  Request last = request(100);
  last.max_tokens = 1;
  last.ids.erase(last.ids.begin(), last.ids.end() - 10);
  EXPECT_EQ(engine->run(last).ids, cut.ids);
}

}  // namespace
}  // namespace se::testing
