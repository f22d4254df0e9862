// engine/engine_impl.h -- inside of the engine: one thread that owns everything, and the messages to it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "engine/runner.h"
#include "model/checkpoint.h"
#include "sparseengine/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace se {

struct Engine::Impl {
  EngineOptions options;
  ModelInfo info;
  Checkpoint checkpoint;
  Compute compute = Compute::kDefault;
  std::optional<text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;
  ModelKv model_kv;
  std::shared_ptr<const Plan> dense;

  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<KvStore> store;
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<Runner> runner;

  // Owned by the engine's thread.
  std::map<uint64_t, std::unique_ptr<Job>> jobs;
  std::map<uint64_t, std::unique_ptr<Session>> sessions;
  std::vector<float> adjusted;                               // logits after a request's rules
  std::map<std::string, std::shared_ptr<const Plan>> plans;  // by canonical text: equal plans share a family

  // Messages. A function is run by the engine's thread between steps.
  std::mutex mutex;
  std::condition_variable wake, idle;
  std::vector<std::function<void()>> inbox;
  std::atomic<uint64_t> next_id{1};
  std::atomic<int64_t> open_jobs{0};
  bool stop = false;
  std::thread thread;
  Stats stats;    // guarded by mutex
  Status damage;  // not ok: weights were lost, nothing is computed any more

  void post(std::function<void()> f);
  template <typename T>
  T ask(std::function<T()> f);  // runs f on the engine's thread and waits
  static std::vector<Answer> wait(Engine& engine, uint64_t session, Request request, Callbacks callbacks);
  void loop();
  bool step();  // false: nothing to do
  // Whether the model's file is still what was loaded; the first time it is not, `damage` says why.
  bool intact();
  void fail_all();  // every open job, with `damage`

  Result<std::shared_ptr<const Plan>> plan_of(const std::string& text);
  Status write_session(const Session& s, const std::string& path, const std::string& note);
  Result<std::unique_ptr<Session>> read_session(const std::string& path, std::string& note);  // without an id
  Status accept(Job& job);
  Status accept_base(Job& job);
  Status check_sampling(const Job& job) const;
  Result<LogitRules> logit_rules(const Request& request) const;
  bool trace_step(const StepWork& work);  // true: the driver tells until trace({}, false)
  void tell_kept(const Job& job) const;
  void branch(Job& first, std::span<const float> logits);  // choices 1 .. n - 1, once the prompt is through
  void first_token(Job& job, std::span<const float> logits);
  void start(std::unique_ptr<Job> job);
  void on_logits(Job& job, int64_t index, std::span<const float> logits);
  void take_token(Job& job, std::span<const float> logits);
  int32_t choose_token(Job& job, std::span<const float> logits);
  void show(Job& job, const std::string& text);
  void finish(Job& job, Finish why, Status error = {});
  void drop_cancelled();
  int64_t idle_session_bytes() const;
  void measure_peak(const StepWork& work, int64_t live_before);
  void fill_usage(Job& job);
  void publish_stats();
};

// Of the keys that dense's prompt tiles would have read between two states of a sequence's counters, the
// share that its prompts did, by layer; empty where the plan lets prompts read all. And the mean over
// full-attention layers.
std::vector<float> prompt_reads(const KvCounters& now, const KvCounters& before);
double mean_of_full_layers(std::span<const float> by_layer, const ModelKv& model);

// Paged and tail tokens of a sequence by group: where a price of its next turn starts from.
std::vector<std::array<int64_t, 2>> held_tokens(const PlanSequence& seq);

template <typename T>
T Engine::Impl::ask(std::function<T()> f) {
  std::optional<T> out;
  std::mutex m;
  std::condition_variable done;
  post([&] {
    T value = f();
    std::lock_guard lock(m);
    out.emplace(std::move(value));
    done.notify_one();
  });
  std::unique_lock lock(m);
  done.wait(lock, [&] { return out.has_value(); });
  return std::move(*out);
}

}  // namespace se
