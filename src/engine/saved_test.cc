// Saved sessions: what is loaded goes on as what was saved; what does not fit is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/engine_testing.h"

namespace se::testing {
namespace {

struct TempFile {
  std::string path = "/tmp/se_saved_" + std::to_string(::getpid());
  ~TempFile() { std::remove(path.c_str()); }
  std::string read() const {
    std::ifstream f(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(f), {}};
  }
  void write(const std::string& bytes) const { std::ofstream(path, std::ios::binary) << bytes; }
};

Request turn(int64_t n, uint64_t seed, int64_t answer) {
  Rng rng(seed);
  Request r;
  for (int64_t i = 0; i < n; ++i) r.ids.push_back(kTinyFirstByte + int32_t(rng.below(256)));
  r.max_tokens = answer, r.ignore_eos = true, r.logprobs = 1;
  return r;
}

void expect_same(const Answer& got, const Answer& want, const std::string& what) {
  ASSERT_EQ(got.finish, want.finish) << what << ": " << got.error.message();
  EXPECT_EQ(got.ids, want.ids) << what;
  for (size_t i = 0; i < want.logprobs.size(); ++i)
    ASSERT_EQ(got.logprobs[i].logprob, want.logprobs[i].logprob) << what << " " << i;
  EXPECT_EQ(got.usage.kv.resident_bytes, want.usage.kv.resident_bytes) << what;
  EXPECT_EQ(got.usage.kv.predicted_peak_bytes, want.usage.kv.predicted_peak_bytes) << what;
  EXPECT_EQ(got.usage.kv.read_tokens, want.usage.kv.read_tokens) << what;
}

TEST(Saved, GoesOnAsTheSessionItselfUnderEveryPlan) {
  const TempFile file;
  for (const std::string& plan : test_plans()) {
    for (int64_t prompt : {1, 37, 200}) {
      auto here = tiny_engine(), there = tiny_engine();
      const auto s = here->open_session(plan);
      ASSERT_TRUE(s.ok());
      ASSERT_EQ(here->run_turn(*s, turn(prompt, 1, 9)).finish, Finish::kLength);
      const Status saved = here->save_session(*s, file.path, "a note");
      ASSERT_TRUE(saved.ok()) << saved.message();
      const std::string bytes = file.read();
      const auto loaded = there->load_session(file.path);
      ASSERT_TRUE(loaded.ok()) << plan << ": " << loaded.status().message();
      EXPECT_EQ(loaded->note, "a note");
      EXPECT_EQ(loaded->tokens, int64_t(here->session_ids(*s).size()));
      EXPECT_EQ(there->session_ids(loaded->session), here->session_ids(*s));
      ASSERT_TRUE(there->save_session(loaded->session, file.path, "a note").ok());
      EXPECT_EQ(file.read(), bytes) << plan << ": saved again, the same bytes";
      for (uint64_t more : {2, 3})
        expect_same(there->run_turn(loaded->session, turn(30, more, 20)),
                    here->run_turn(*s, turn(30, more, 20)),
                    plan);
      there->close_session(loaded->session);
      there->drain();
      there->run(turn(1, 1, 1));
      EXPECT_EQ(there->stats().live_pages, 0) << plan;
    }
  }
}

TEST(Saved, ServesAsTheBeginningOfOtherPlans) {
  const TempFile file;
  auto here = tiny_engine(), there = tiny_engine();
  const auto s = here->open_session("dense");
  here->run_turn(*s, turn(150, 1, 0));
  ASSERT_TRUE(here->save_session(*s, file.path).ok());
  const auto loaded = there->load_session(file.path);
  ASSERT_TRUE(loaded.ok());
  for (const std::string& plan : test_plans()) {
    Request r = turn(20, 5, 12);
    r.plan = plan;
    Request a = r, b = r;
    a.base = loaded->session, b.base = *s;
    expect_same(there->run(a), here->run(b), plan);
  }
}

TEST(Saved, RefusesWhatDoesNotFit) {
  const TempFile file;
  auto engine = tiny_engine();
  const auto refused = [&](Engine& e, const std::string& reason) {
    const auto r = e.load_session(file.path);
    ASSERT_FALSE(r.ok()) << reason;
    EXPECT_NE(r.status().message().find(reason), std::string::npos) << r.status().message();
    EXPECT_EQ(r.status().message().rfind(file.path, 0), 0u) << r.status().message();
    EXPECT_EQ(e.stats().live_pages, 0);
  };
  const auto s = engine->open_session("snapkv(budget=48,sink=4,recent=16,window=8)+kivi+quest(budget=32)");
  EXPECT_EQ(engine->save_session(*s, file.path).code(), Code::kInvalid) << "nothing to save";
  EXPECT_EQ(engine->save_session(999, file.path).code(), Code::kNotFound);
  engine->run_turn(*s, turn(200, 1, 9));
  EXPECT_EQ(engine->save_session(*s, "/tmp/no/such/folder/x").code(), Code::kNotFound);
  EXPECT_EQ(engine->save_session(*s, "/dev/null").code(), Code::kIo);
  ASSERT_TRUE(engine->save_session(*s, file.path).ok());
  const std::string good = file.read();

  auto fresh = tiny_engine();
  file.write("GGUF" + good.substr(4)), refused(*fresh, "not a saved session");
  file.write(std::string("SEKV\0\0\0\2", 8) + good.substr(8)), refused(*fresh, "version 2");
  file.write(good + "x"), refused(*fresh, "more bytes follow");
  // Every truncation and every flipped bit is noticed, before anything is kept.
  Rng rng(3);
  for (int i = 0; i < 300; ++i) {
    file.write(good.substr(0, size_t(rng.below(int64_t(good.size())))));
    refused(*fresh, ": ");
    std::string damaged = good;
    damaged[size_t(i < 100 ? i * 4 : rng.below(int64_t(good.size())))] ^= char(1 << rng.below(8));
    file.write(damaged), refused(*fresh, ": ");
  }
  file.write(good);
  EngineOptions o;
  o.exact = true;
  refused(*tiny_engine(o), "--compute default");
  o = {}, o.context = 128;
  refused(*tiny_engine(o), "the context is 128");
  o = {}, o.kv_bytes = 4096;
  const auto none = tiny_engine(o)->load_session(file.path);
  EXPECT_EQ(none.status().code(), Code::kExhausted) << none.status().message();
  EXPECT_TRUE(fresh->load_session(file.path).ok());
}

}  // namespace
}  // namespace se::testing
