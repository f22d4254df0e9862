// A model file that shrinks while the engine runs ends requests with a line, not the process with a signal.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/engine_testing.h"

namespace se::testing {
namespace {

Request long_request() {
  Request r;
  for (int i = 0; i < 40; ++i) r.ids.push_back(kTinyFirstByte + i);
  r.plan = "dense", r.max_tokens = 2000, r.ignore_eos = true;
  return r;
}

TEST(TornFile, EndsWhatRunsAndRefusesWhatComes) {
  const TempFile file(tiny_llama().bytes());
  EngineOptions o;
  o.model = file.path(), o.context = 4096, o.threads = 2, o.kv_bytes = 64 << 20;
  auto engine = Engine::open(o);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  int texts = 0;
  Callbacks callbacks;
  callbacks.on_text = [&](const std::string&, int) {
    if (++texts == 5) std::filesystem::resize_file(file.path(), 8192);
  };
  const Answer answer = (*engine)->run(long_request(), callbacks);
  EXPECT_EQ(answer.finish, Finish::kError);
  EXPECT_NE(answer.error.message().find(file.path() + ": shrank from "), std::string::npos)
      << answer.error.message();
  EXPECT_EQ(answer.error.message().find('\n'), std::string::npos);
  EXPECT_LT(answer.ids.size(), 2000u);
  EXPECT_GE(answer.ids.size(), 5u);
  EXPECT_LE(texts, 6);  // the step that met the hole tells nothing
  const Answer later = (*engine)->run(long_request());
  EXPECT_EQ(later.finish, Finish::kError);
  EXPECT_TRUE(later.ids.empty());
  EXPECT_NE(later.error.message().find("shrank"), std::string::npos);
}

}  // namespace
}  // namespace se::testing
