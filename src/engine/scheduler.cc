#include "engine/scheduler.h"

#include <algorithm>

namespace se {
namespace {
int rows(const Job& job) { return job.branched || job.choice > 0 ? 1 : job.request.n; }
}  // namespace

void Scheduler::branch(Job& first, Job& choice, int64_t bytes) {
  choice.reserved = bytes, first.reserved -= bytes;  // rows were counted at admission
  running_.push_back(&choice);
}

void Scheduler::remove(Job* job) {
  if (const auto w = std::find(waiting_.begin(), waiting_.end(), job); w != waiting_.end()) {
    waiting_.erase(w);
    return;
  }
  if (const auto r = std::find(running_.begin(), running_.end(), job); r != running_.end()) {
    reserved_ -= job->reserved;
    rows_ -= rows(*job);
    running_.erase(r);
  }
}

std::vector<Job*> Scheduler::admit(int64_t held) {
  std::vector<Job*> admitted;
  while (!waiting_.empty()) {
    Job* job = waiting_.front();
    if (rows_ + rows(*job) > options_.max_rows) break;
    if (reserved_ + held + job->reserved > options_.kv_bytes) break;
    waiting_.pop_front();
    running_.push_back(job);
    reserved_ += job->reserved;
    rows_ += rows(*job);
    admitted.push_back(job);
  }
  return admitted;
}

int64_t next_chunk(const Job& job, int64_t budget) {
  const int64_t rest = job.prompt() - job.done, chunk = job.plan->chunk;
  if (chunk == 0) return std::min(rest, budget);
  const int64_t at = job.seq->logical() % chunk;
  return std::min(rest, chunk - at);
}

StepWork Scheduler::next() const {
  StepWork work;
  int64_t budget = options_.step_tokens;
  for (Job* job : running_) {
    if (job->state == Job::State::kDecode) work.decode.push_back(job), --budget;
  }
  budget = std::max<int64_t>(budget, options_.step_tokens / 8);  // prompts go on however many rows decode
  for (Job* job : running_) {
    if (job->state != Job::State::kPrefill || budget <= 0) continue;
    const bool sliced = job->plan->staging == Staging::kLayer || job->slice_tokens > 0 ||
                        (job->fixed_chunks() && next_chunk(*job, budget) > budget);
    if (sliced) {
      if (!work.sliced) work.sliced = job, work.slice_budget = budget * options_.layers, budget = 0;
      continue;
    }
    const int64_t n = next_chunk(*job, budget);
    work.chunks.push_back({job, n});
    budget -= n;
  }
  return work;
}

}  // namespace se
