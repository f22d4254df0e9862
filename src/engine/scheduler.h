// engine/scheduler.h -- all policy of a step: who is admitted, who decodes, how much of which prompt runs.
// First come, first served; decode rows ride along with prompts under one token budget, so a long prompt
// never freezes running streams. Knows jobs and their prices, no kernels.
#pragma once
#include <deque>
#include <vector>

#include "engine/job.h"

namespace se {

struct SchedulerOptions {
  int64_t step_tokens = 512;
  int max_rows = 64;
  int64_t kv_bytes = 0;  // of the arena
  int layers = 1;
};

struct Chunk {
  Job* job = nullptr;
  int64_t tokens = 0;
};

struct StepWork {
  std::vector<Job*> decode;
  std::vector<Chunk> chunks;  // chunk-major prompts, through all layers in this step
  Job* sliced = nullptr;      // a prompt that runs in (layer, chunk) slices ...
  int64_t slice_budget = 0;   // ... of so many token-layers in this step
  bool empty() const { return decode.empty() && chunks.empty() && !sliced; }
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerOptions options) : options_(options) {}

  void add(Job* job) { waiting_.push_back(job); }
  void remove(Job* job);  // from wherever it is; gives its reservation back
  // A running job's choice joins the running set with `bytes` of the first one's reservation.
  void branch(Job& first, Job& choice, int64_t bytes);
  // Moves waiting jobs into the running set while rows and their peaks fit beside `held` bytes of idle
  // sessions. In order: the first that does not fit blocks those behind it.
  std::vector<Job*> admit(int64_t held);
  StepWork next() const;

  int64_t running() const { return int64_t(running_.size()); }
  int64_t waiting() const { return int64_t(waiting_.size()); }
  const std::vector<Job*>& jobs() const { return running_; }

 private:
  SchedulerOptions options_;
  std::deque<Job*> waiting_;
  std::vector<Job*> running_;  // in order of admission
  int rows_ = 0;               // that the running ones have or will have: each counts its choices
  int64_t reserved_ = 0;
};

// Tokens of the next chunk of a chunk-major prompt: at most `budget`, cut at absolute multiples of the plan's
// chunk (then the whole rest of that chunk, whatever the budget).
int64_t next_chunk(const Job& job, int64_t budget);

}  // namespace se
