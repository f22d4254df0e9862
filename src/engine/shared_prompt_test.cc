// Requests that go on from a session's prompt: the answer is that to the whole text, whatever is taken over.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "engine/engine_testing.h"

namespace se::testing {
namespace {

Request request(int64_t n, uint64_t seed) {
  Rng rng(seed);
  Request r;
  for (int64_t i = 0; i < n; ++i) r.ids.push_back(kTinyFirstByte + int32_t(rng.below(256)));
  r.max_tokens = 20, r.ignore_eos = true, r.logprobs = 1;
  return r;
}

TEST(SharedPrompt, AnswersAreThoseOfTheWholePrompt) {
  for (int64_t prefix : {1, 15, 16, 150}) {
    auto engine = tiny_engine();
    const auto session = engine->open_session("dense");
    ASSERT_TRUE(session.ok());
    Request first = request(prefix, 9);
    first.max_tokens = 0, first.logprobs = -1;
    ASSERT_EQ(engine->run_turn(*session, first).finish, Finish::kLength);
    const Engine::Stats before = engine->stats();
    int taken = 0;
    for (const std::string& plan : test_plans()) {
      for (int64_t rest : {3, 40}) {
        Request r = request(rest, uint64_t(rest));
        r.plan = plan;
        Request whole = r;
        whole.ids.insert(whole.ids.begin(), first.ids.begin(), first.ids.end());
        r.base = *session;
        const Answer got = engine->run(r), want = engine->run(whole);
        ASSERT_EQ(got.finish, Finish::kLength) << plan << got.error.message();
        EXPECT_EQ(got.ids, want.ids) << plan << " " << prefix << " " << rest;
        for (size_t i = 0; i < want.logprobs.size(); ++i)
          ASSERT_EQ(got.logprobs[i].logprob, want.logprobs[i].logprob) << plan << " " << i;
        EXPECT_EQ(got.usage.prompt_tokens, prefix + rest) << plan;
        EXPECT_EQ(got.usage.kv.resident_tokens, want.usage.kv.resident_tokens) << plan;
        EXPECT_EQ(got.usage.kv.read_tokens, want.usage.kv.read_tokens) << plan;
        EXPECT_LE(got.usage.kv.peak_bytes, got.usage.kv.predicted_peak_bytes) << plan;
        EXPECT_TRUE(got.usage.cached_tokens == 0 || got.usage.cached_tokens == prefix) << plan;
        taken += got.usage.cached_tokens > 0;
      }
    }
    EXPECT_GE(taken, 10);  // dense, quest, and what keeps tokens by layer
    EXPECT_EQ(engine->stats().live_bytes, before.live_bytes);
    engine->close_session(*session);
    engine->drain();
    EXPECT_EQ(engine->run(request(3, 1)).ids.size(), 20u);
    EXPECT_EQ(engine->stats().live_pages, 0);
  }
}

TEST(SharedPrompt, SharesThePromptAmongManyPlansAtOnceAndIsRefusedWhereItCannot) {
  EngineOptions small;
  small.kv_bytes = 1 << 20;
  auto engine = tiny_engine(small);
  const auto session = engine->open_session("dense");
  ASSERT_TRUE(session.ok());
  Request first = request(200, 9);
  first.max_tokens = 0;
  engine->run_turn(*session, first);
  std::mutex m;
  std::map<size_t, Answer> got;
  for (size_t i = 0; i < test_plans().size(); ++i) {
    Request r = request(40, i);
    r.plan = test_plans()[i], r.base = *session, r.n = 2, r.sampling.temperature = 1;
    Callbacks c;
    c.on_done = [&, i](Answer a) {
      std::lock_guard lock(m);
      got[2 * i + size_t(a.choice)] = std::move(a);
    };
    engine->submit(r, c);
  }
  Request busy = request(3, 1);
  const Answer refused = engine->run_turn(*session, busy);
  EXPECT_NE(refused.error.message().find("takes no turn"), std::string::npos) << refused.error.message();
  engine->drain();
  auto quiet = tiny_engine();
  for (size_t i = 0; i < test_plans().size(); ++i) {
    Request r = request(40, i);
    r.plan = test_plans()[i], r.n = 2, r.sampling.temperature = 1;
    r.ids.insert(r.ids.begin(), first.ids.begin(), first.ids.end());
    const std::vector<Answer> want = quiet->run_all(r);
    for (size_t c = 0; c < 2; ++c) EXPECT_EQ(got[2 * i + c].ids, want[c].ids) << test_plans()[i];
  }
  Request r = request(5, 2);
  r.base = 777;
  EXPECT_EQ(engine->run(r).error.code(), Code::kNotFound);
  r.base = *session, r.prompt_logprobs = 0;
  EXPECT_NE(engine->run(r).error.message().find("prompt_logprobs"), std::string::npos);
  EXPECT_EQ(engine->run_turn(*session, busy).finish, Finish::kLength);  // free again
  engine->close_session(*session);
  engine->drain();
}

}  // namespace
}  // namespace se::testing
