// engine/engine_testing.h -- an engine over a tiny random model, and plans of every kind, for tests.
#pragma once
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "model/testing/tiny_llama.h"
#include "sparseengine/engine.h"

namespace se::testing {

// A file that goes with its owner.
class TinyModelFile {
 public:
  TinyModelFile() : path_("/tmp/se_tiny_" + std::to_string(::getpid()) + ".gguf") {
    TinyLlamaOptions o;
    o.head_dim = 32, o.types = {DType::kQ8_0, DType::kQ4_1};
    const Status s = write_tiny_llama(path_, o);
    SE_CHECK(s.ok(), "{}", s.message());
  }
  ~TinyModelFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline const std::string& tiny_model_path() {
  static const TinyModelFile file;
  return file.path();
}

inline std::unique_ptr<Engine> tiny_engine(EngineOptions o = {}) {
  o.model = tiny_model_path();
  if (o.context == 0) o.context = 4096;
  if (o.threads == 0) o.threads = 2;
  if (o.kv_bytes == 0) o.kv_bytes = 64 << 20;
  auto e = Engine::open(o);
  SE_CHECK(e.ok(), "{}", e.status().message());
  return e.take();
}

inline const std::vector<std::string>& test_plans() {
  static const std::vector<std::string> plans{
      "dense",
      "quest(budget=64,dense_layers=1)",
      "snapkv(budget=48,sink=4,recent=16,window=8)",
      "snapkv(budget=48,sink=4,recent=16,window=8,every=16)",
      "streamingllm(budget=40,sink=4)",
      "fp8",
      "kivi",
      "kivi(bits=2)+quest(budget=64)",
      "snapkv(budget=64,sink=4,recent=16,window=8)+kivi+quest(budget=48)",
      "streamingllm(budget=64,sink=4)+fp8(format=e5m2)",
      "snapkv(budget=50%,sink=4,recent=16,window=8)+fp8+quest(budget=48,dense_layers=0)",
      "flashprefill(threshold=1,block=16,sink=1,window=1,last=1,min_len=32)+fp8+quest(budget=64)",
      "flashprefill(threshold=1,block=16,sink=1,window=1,last=1,min_len=32)+"
      "snapkv(budget=48,sink=4,recent=16,window=8)+kivi"};
  return plans;
}

// A random request: a prompt of 1 .. 180 tokens, a plan, greedy or sampled.
inline Request random_request(Rng& rng) {
  Request r;
  r.ids.resize(size_t(1 + rng.below(180)));
  for (int32_t& id : r.ids) id = kTinyFirstByte + int32_t(rng.below(256));
  r.plan = test_plans()[size_t(rng.below(int64_t(test_plans().size())))];
  r.max_tokens = rng.below(40);
  r.ignore_eos = rng.below(2) == 0;
  if (rng.below(2)) {
    r.sampling.temperature = 0.8f, r.sampling.top_k = int(rng.below(50)), r.sampling.top_p = 0.9f;
    r.sampling.seed = uint64_t(rng.below(1000));
  }
  if (rng.below(8) == 0) r.logprobs = 3;
  if (rng.below(8) == 0) r.prompt_logprobs = 2;
  if (rng.below(6) == 0) r.stop = {"e", "th"};
  return r;
}

}  // namespace se::testing
