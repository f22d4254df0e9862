#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "engine/engine_testing.h"

namespace se::testing {
namespace {

Request prompt(int64_t n, const std::string& plan, int64_t max_tokens, uint64_t seed = 1) {
  Rng rng(seed, 5);
  Request r;
  for (int64_t i = 0; i < n; ++i) r.ids.push_back(kTinyFirstByte + int32_t(rng.below(256)));
  r.plan = plan, r.max_tokens = max_tokens, r.ignore_eos = true;
  return r;
}

void expect_same(const Answer& got, const Answer& want, const std::string& what) {
  EXPECT_EQ(got.ids, want.ids) << what;
  EXPECT_EQ(got.text, want.text) << what;
  EXPECT_EQ(got.finish, want.finish) << what << ": " << got.error.message();
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size()) << what;
  for (size_t i = 0; i < got.logprobs.size(); ++i)
    EXPECT_EQ(got.logprobs[i].logprob, want.logprobs[i].logprob) << what;
  ASSERT_EQ(got.prompt_logprobs.size(), want.prompt_logprobs.size()) << what;
  for (size_t i = 0; i < got.prompt_logprobs.size(); ++i)
    EXPECT_EQ(got.prompt_logprobs[i].logprob, want.prompt_logprobs[i].logprob) << what;
}

TEST(Engine, AnswersAreTheSameAloneAndAmongEightPlans) {
  auto engine = tiny_engine();
  std::vector<Answer> alone;
  for (size_t i = 0; i < test_plans().size(); ++i) {
    Request r = prompt(60 + 20 * int64_t(i), test_plans()[i], 30, i);
    r.logprobs = 2;
    alone.push_back(engine->run(std::move(r)));
    EXPECT_EQ(alone.back().ids.size(), 30u) << alone.back().error.message();
  }
  for (int64_t step_tokens : {32, 97, 512}) {
    EngineOptions o;
    o.step_tokens = step_tokens;
    o.threads = step_tokens == 97 ? 1 : 2;
    auto busy = tiny_engine(o);
    std::mutex m;
    std::map<size_t, Answer> got;
    for (size_t i = 0; i < test_plans().size(); ++i) {
      Request r = prompt(60 + 20 * int64_t(i), test_plans()[i], 30, i);
      r.logprobs = 2;
      Callbacks c;
      c.on_done = [&, i](Answer a) {
        std::lock_guard lock(m);
        got[i] = std::move(a);
      };
      busy->submit(std::move(r), std::move(c));
    }
    busy->drain();
    ASSERT_EQ(got.size(), test_plans().size());
    for (size_t i = 0; i < test_plans().size(); ++i) expect_same(got[i], alone[i], test_plans()[i]);
    EXPECT_EQ(busy->stats().live_pages, 0);
  }
}

// Bar 4: random requests, cancellations, an arena that holds only a few of them at a time.
TEST(Engine, FiveHundredRandomRequestsReturnEveryPageAndAnswerAsAlone) {
  EngineOptions small;
  small.kv_bytes = 512 << 10;
  small.step_tokens = 64, small.max_rows = 12;
  auto engine = tiny_engine(small);
  auto quiet = tiny_engine();
  Rng rng(20261129);
  struct Sent {
    Request request;
    Answer answer;
    bool cancel = false, done = false;
    uint64_t id = 0;
  };
  std::vector<std::unique_ptr<Sent>> all;
  std::mutex m;
  for (int i = 0; i < 500; ++i) {
    auto s = std::make_unique<Sent>();
    s->request = random_request(rng);
    s->cancel = rng.below(5) == 0;
    Callbacks c;
    c.on_done = [&m, s = s.get()](Answer a) {
      std::lock_guard lock(m);
      EXPECT_FALSE(s->done) << "on_done comes once";
      s->answer = std::move(a), s->done = true;
    };
    Request copy = s->request;
    s->id = engine->submit(std::move(copy), std::move(c));
    if (i % 7 == 3) {  // cancel some that may be waiting, prefilling or decoding by now
      for (int64_t k = std::max(0, i - 9); k < i; ++k) {
        if (all[size_t(k)]->cancel) engine->cancel(all[size_t(k)]->id);
      }
    }
    all.push_back(std::move(s));
    if (i % 25 == 24) engine->drain();
  }
  engine->drain();
  EXPECT_EQ(engine->stats().live_pages, 0);
  EXPECT_EQ(engine->stats().live_bytes, 0);
  int refused = 0, cancelled = 0;
  for (auto& s : all) {
    ASSERT_TRUE(s->done);
    if (s->answer.finish == Finish::kError) {  // a peak over the small arena is refused at once
      EXPECT_EQ(s->answer.error.code(), Code::kExhausted) << s->answer.error.message();
      ++refused;
      continue;
    }
    const Answer want = quiet->run(s->request);
    if (s->answer.finish == Finish::kCancelled) {  // what was made so far is the beginning of the same answer
      ++cancelled;
      ASSERT_LE(s->answer.ids.size(), want.ids.size());
      EXPECT_TRUE(std::equal(s->answer.ids.begin(), s->answer.ids.end(), want.ids.begin()));
      continue;
    }
    expect_same(s->answer, want, s->request.plan);
  }
  EXPECT_LT(refused, 250);
  EXPECT_GT(cancelled, 5);
}

TEST(Engine, BytesArePricedBeforeTheyAreUsed) {
  auto engine = tiny_engine();
  for (const std::string& plan : test_plans()) {
    const Answer a = engine->run(prompt(150, plan, 50));
    ASSERT_EQ(a.finish, Finish::kLength) << plan << a.error.message();
    EXPECT_EQ(a.usage.kv.resident_bytes, a.usage.kv.predicted_resident_bytes) << plan;
    EXPECT_LE(a.usage.kv.peak_bytes, a.usage.kv.predicted_peak_bytes) << plan;
    Engine::BenchCase c;
    c.plan = plan, c.depth = 150, c.decode = 20, c.batch = 2;
    const auto b = engine->bench(c);
    ASSERT_TRUE(b.ok()) << b.status().message();
    EXPECT_EQ(b->kv_bytes, 2 * b->price.resident_bytes) << plan;
    c.synthetic_fill = true;
    const auto synthetic = engine->bench(c);
    ASSERT_TRUE(synthetic.ok()) << synthetic.status().message();
    EXPECT_EQ(synthetic->kv_bytes, b->kv_bytes) << plan;
  }
  EXPECT_EQ(engine->stats().live_pages, 0);
}

TEST(Engine, SessionsGoOnFromTheirForwardedIds) {
  for (const std::string& plan : test_plans()) {
    auto engine = tiny_engine();
    const auto session = engine->open_session(plan);
    ASSERT_TRUE(session.ok());
    const auto turn = [&](Request r) { return engine->run_turn(*session, std::move(r)); };
    std::vector<int32_t> want;
    for (uint64_t t = 0; t < 3; ++t) {
      Request r = prompt(40 + 13 * int64_t(t), plan, 12, t);
      const std::vector<int32_t> ids = r.ids;
      const Answer a = turn(std::move(r));
      ASSERT_EQ(a.finish, Finish::kLength) << plan << ": " << a.error.message();
      want.insert(want.end(), ids.begin(), ids.end());
      want.insert(want.end(), a.ids.begin(), a.ids.end());
      std::vector<int32_t> forwarded = engine->session_ids(*session);
      ASSERT_EQ(forwarded.size() + 1, want.size()) << plan;  // the last token is forwarded by the next turn
      EXPECT_TRUE(std::equal(forwarded.begin(), forwarded.end(), want.begin())) << plan;
    }
    if (plan == "dense") {  // the same ids in one prompt give the same next tokens
      Request r = prompt(1, plan, 5);
      r.ids = engine->session_ids(*session);
      Request more = prompt(0, plan, 5);
      more.ids = {kTinyFirstByte + 1};
      const std::vector<int32_t> tail{want.back(), kTinyFirstByte + 1};
      r.ids.insert(r.ids.end(), tail.begin(), tail.end());
      EXPECT_EQ(turn(std::move(more)).ids, engine->run(std::move(r)).ids);
    }
    engine->close_session(*session);
    engine->drain();
    EXPECT_EQ(engine->run(prompt(3, "dense", 1)).ids.size(), 1u);
    EXPECT_EQ(engine->stats().live_pages, 0) << plan;
  }
}

TEST(Engine, RefusesWithOneClearLine) {
  EngineOptions o;
  o.kv_bytes = 1 << 20;
  auto engine = tiny_engine(o);
  const auto error = [&](Request r) {
    const Answer a = engine->run(std::move(r));
    EXPECT_EQ(a.finish, Finish::kError);
    EXPECT_EQ(a.error.message().find('\n'), std::string::npos);
    return a.error.message();
  };
  EXPECT_NE(error(prompt(10, "qest", 5)).find("quest"), std::string::npos);
  EXPECT_NE(error(prompt(5000, "dense", 5)).find("4096"), std::string::npos);
  EXPECT_NE(error(prompt(3000, "dense", 5)).find("MiB"), std::string::npos);
  EXPECT_NE(error(prompt(0, "dense", 5)).find("empty"), std::string::npos);
  Request bad = prompt(3, "dense", 5);
  bad.ids[1] = 100000;
  EXPECT_NE(error(std::move(bad)).find("vocabulary"), std::string::npos);
  Request turn = prompt(3, "dense", 5);
  const Answer answer = engine->run_turn(999, std::move(turn));
  EXPECT_EQ(answer.error.code(), Code::kNotFound);
  EXPECT_EQ(engine->stats().live_pages, 0);
}

}  // namespace
}  // namespace se::testing
