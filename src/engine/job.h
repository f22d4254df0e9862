// engine/job.h -- one request inside the engine, and the conversations that outlive requests.
#pragma once
#include <chrono>
#include <memory>
#include <optional>

#include "device/device.h"
#include "kernels/sample/logit_rules.h"
#include "sparse/driver.h"
#include "sparseengine/engine.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace se {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

struct Session {
  uint64_t id = 0;
  std::shared_ptr<const Plan> plan;
  std::unique_ptr<PlanSequence> seq;  // absent while a turn runs (the job has it), or before the first
  std::vector<int32_t> forwarded;     // ids whose K/V the sequence holds, or held before eviction
  int32_t unforwarded = -1;           // the last sampled token, where it is part of the text
  bool busy = false;
  int users = 0;  // requests that go on from it
};

struct Job {
  enum class State : uint8_t { kWaiting, kPrefill, kDecode };
  uint64_t id = 0;
  uint64_t request_id = 0;  // the same for all choices of a request
  int choice = 0;           // of the request's n; the first runs the prompt, the others branch off after it
  bool branched = false;
  Request request;
  Callbacks callbacks;
  State state = State::kWaiting;
  std::shared_ptr<const Plan> plan;
  std::unique_ptr<PlanSequence> seq;
  Session* session = nullptr;
  Session* base = nullptr;  // whose tokens the prompt begins with
  int64_t cached = 0;       // tokens taken over from it ...
  bool seeded = false;      // ... layer by layer (they are part of request.ids), else as pages before them
  bool cancelled = false;

  Cost price;            // of the whole life
  int64_t reserved = 0;  // bytes of the arena that admission holds for it

  // Prefill. done: prompt tokens forwarded (chunk-major). Sliced prompts keep hidden states between slices.
  int64_t done = 0;
  Buffer hidden;                            // f32 [prompt or chunk, hidden]
  int64_t slice_first = 0;                  // first prompt token of `hidden`
  int64_t slice_tokens = 0;                 // tokens in `hidden`; 0: none
  int slice_layer = 0;                      // next layer
  int64_t slice_at = 0;                     // layer-major: tokens of this layer that are through
  int64_t units_done = 0, units_total = 1;  // progress in token-layers

  // Answer.
  Answer answer;
  int32_t next = -1;  // sampled, to be forwarded by the next step
  LogitRules rules;
  TokenHistory history;  // kept if there are rules
  std::optional<text::Detokenizer> detokenizer;
  std::optional<text::StopMatcher> stops;
  double dense_reads = 0;  // tokens that dense would have read, sum over decode steps (one layer)
  int64_t peak_bytes = 0;
  KvCounters counters_before;
  Clock::time_point submitted, started, first_token, last_token;

  int64_t prompt() const { return int64_t(request.ids.size()); }
  bool fixed_chunks() const { return plan->staging == Staging::kNone && plan->chunk > 0; }
};

}  // namespace se
