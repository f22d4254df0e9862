// The engine's thread: messages, admission, a step, what its logits mean.
#include <algorithm>
#include <cmath>

#include "engine/engine_impl.h"
#include "kernels/sample/sample.h"

namespace se {

void Engine::Impl::post(std::function<void()> f) {
  {
    std::lock_guard lock(mutex);
    inbox.push_back(std::move(f));
  }
  wake.notify_one();
}

void Engine::Impl::loop() {
  for (;;) {
    std::vector<std::function<void()>> messages;
    {
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] { return stop || !inbox.empty() || !jobs.empty(); });
      if (stop && inbox.empty()) break;
      messages.swap(inbox);
    }
    for (auto& m : messages) m();
    drop_cancelled();
    step();
    publish_stats();
  }
  for (auto& [id, job] : jobs) job->cancelled = true;
  drop_cancelled();
  sessions.clear();
}

void Engine::Impl::publish_stats() {
  std::lock_guard lock(mutex);
  const PageArena& arena = store->arena();
  stats = {
      arena.live_bytes(), arena.live_pages(), arena.peak_bytes(), scheduler->running(), scheduler->waiting()};
}

int64_t Engine::Impl::idle_session_bytes() const {
  int64_t n = 0;
  for (const auto& [id, s] : sessions) {
    if (s->seq) n += runner->bytes(*s->seq);
  }
  return n;
}

bool Engine::Impl::step() {
  for (Job* job : scheduler->admit(idle_session_bytes())) {
    job->started = Clock::now();
    job->answer.timing.queue_s = std::chrono::duration<double>(job->started - job->submitted).count();
    if (!job->seq) {
      auto seq = runner->driver().open(job->plan);
      if (!seq.ok()) {
        finish(*job, Finish::kError, seq.status());
        continue;
      }
      job->seq = seq.take();
    }
    job->seq->start_turn(job->prompt(), job->request.max_tokens);
    job->counters_before = job->seq->counters();
    job->state = Job::State::kPrefill;
    job->units_total = job->prompt() * checkpoint.model->shape().layers;
  }
  const StepWork work = scheduler->next();
  if (work.empty()) return false;
  const auto logits = [this](Job& job, int64_t index, std::span<const float> l) { on_logits(job, index, l); };
  std::vector<std::pair<Job*, Status>> failed;
  store->arena().reset_peak();
  const int64_t live = store->arena().live_bytes();
  for (Job* job : work.decode) job->dense_reads += double(job->seq->logical());
  Status ran = runner->run(work, logits, failed);
  if (!ran.ok()) {  // no room although every peak was reserved: the youngest of the step gives way
    Job* victim = !work.chunks.empty() ? work.chunks.back().job : work.decode.back();
    finish(*victim, Finish::kError, ran);
    return true;
  }
  if (work.sliced) {
    bool through = false;
    if (Status s = runner->run_slices(*work.sliced, work.slice_budget, logits, through); !s.ok())
      failed.emplace_back(work.sliced, s);
  }
  measure_peak(work, live);
  for (const auto& [job, status] : failed) {
    if (jobs.count(job->id)) finish(*job, Finish::kError, status);
  }
  const auto progress = [&](Job* job) {
    if (job->callbacks.on_prefill)
      job->callbacks.on_prefill(job->prompt() * job->units_done / job->units_total, job->prompt());
  };
  for (const Chunk& c : work.chunks) progress(c.job);
  if (work.sliced) progress(work.sliced);
  std::vector<Job*> done;
  for (auto& [id, job] : jobs) {
    if (job->state == Job::State::kDecode && job->next < 0) done.push_back(job.get());
  }
  for (Job* job : done) finish(*job, job->answer.finish);
  return true;
}

// Most bytes of a job so far: exact where it is alone in the step, else as they stand after it.
void Engine::Impl::measure_peak(const StepWork& work, int64_t live_before) {
  const size_t rows = work.decode.size() + work.chunks.size() + (work.sliced ? 1 : 0);
  const auto see = [&](Job* job) {
    int64_t bytes = runner->bytes(*job->seq);
    if (rows == 1)
      bytes = std::max(bytes,
                       store->arena().peak_bytes() -
                           (live_before - std::min(live_before, job->answer.usage.kv.resident_bytes)));
    job->answer.usage.kv.resident_bytes = runner->bytes(*job->seq);
    job->peak_bytes = std::max(job->peak_bytes, bytes);
  };
  for (Job* job : work.decode) see(job);
  for (const Chunk& c : work.chunks) see(c.job);
  if (work.sliced) see(work.sliced);
}

void Engine::Impl::on_logits(Job& job, int64_t index, std::span<const float> logits) {
  const auto alternatives = [&](int32_t id, int n) {
    TokenAlternatives a;
    a.id = id, a.logprob = logprob_of(logits, id);
    for (const TokenLogprob& t : top_logprobs(logits, n)) a.top.emplace_back(t.id, t.logprob);
    return a;
  };
  if (index >= 0) {  // a prompt token: its logits speak of the next one
    if (job.request.prompt_logprobs >= 0) {
      auto& out = job.answer.prompt_logprobs;
      if (out.empty()) out.resize(size_t(job.prompt()));
      out[0].id = job.request.ids[0];
      if (index + 1 < job.prompt())
        out[size_t(index) + 1] =
            alternatives(job.request.ids[size_t(index) + 1], job.request.prompt_logprobs);
    }
    if (index + 1 < job.prompt()) return;
    job.state = Job::State::kDecode;
    job.first_token = job.last_token = Clock::now();
    job.answer.timing.first_token_s = std::chrono::duration<double>(job.first_token - job.submitted).count();
    job.answer.timing.prefill_s = std::chrono::duration<double>(job.first_token - job.started).count();
    if (job.request.max_tokens == 0) {
      job.answer.finish = Finish::kLength;
      return;
    }
  } else {
    const auto now = Clock::now();
    job.answer.timing.token_s.push_back(std::chrono::duration<float>(now - job.last_token).count());
    job.last_token = now;
  }
  take_token(job, logits);
  if (job.request.logprobs >= 0)
    job.answer.logprobs.push_back(alternatives(job.answer.ids.back(), job.request.logprobs));
}

// Samples one token; job.next < 0 afterwards: the answer is complete.
void Engine::Impl::take_token(Job& job, std::span<const float> logits) {
  const Sampling& s = job.request.sampling;
  SampleParams p;
  p.temperature = s.temperature, p.top_k = s.top_k, p.top_p = s.top_p, p.min_p = s.min_p, p.seed = s.seed;
  const int32_t id = sample(logits, p, uint64_t(job.seq->logical()));
  Answer& a = job.answer;
  a.ids.push_back(id);
  job.next = id;
  const auto& ends = checkpoint.end_ids;
  if (!job.request.ignore_eos && std::find(ends.begin(), ends.end(), id) != ends.end()) {
    a.finish = Finish::kStop;
    job.next = -1;
    return;
  }
  const std::string shown = job.stops->push(job.detokenizer->push(id));
  a.text += shown;
  if (!shown.empty() && job.callbacks.on_text) job.callbacks.on_text(shown);
  if (job.stops->stopped()) {
    a.finish = Finish::kStop;
    job.next = -1;
  } else if (int64_t(a.ids.size()) >= job.request.max_tokens) {
    a.finish = Finish::kLength;
    job.next = -1;
  }
}

void Engine::Impl::fill_usage(Job& job) {
  Answer& a = job.answer;
  a.usage.prompt_tokens = job.prompt();
  a.usage.completion_tokens = int64_t(a.ids.size());
  a.timing.decode_s = 0;
  for (float t : a.timing.token_s) a.timing.decode_s += double(t);
  KvUsage& u = a.usage.kv;
  u.plan = job.plan ? job.plan->text : job.request.plan;
  if (!job.seq) return;
  const int layers = checkpoint.model->shape().layers;
  u.logical_tokens = job.seq->logical();
  int64_t sum = 0;
  for (int l = 0; l < layers; ++l) {
    sum += job.seq->kv().resident(l);
    u.resident_tokens_max = std::max(u.resident_tokens_max, job.seq->kv().resident(l));
  }
  u.resident_tokens = double(sum) / layers;
  u.resident_bytes = runner->bytes(*job.seq);
  u.peak_bytes = std::max(job.peak_bytes, u.resident_bytes);
  u.predicted_resident_bytes = job.price.resident_bytes, u.predicted_peak_bytes = job.price.peak_bytes;
  u.dense_bytes = job.dense_price.resident_bytes;
  const KvCounters &now = job.seq->counters(), &then = job.counters_before;
  const double steps = double(now.decode_steps - then.decode_steps);
  if (steps > 0) u.read_tokens = double(now.read_tokens - then.read_tokens) / steps / layers;
  if (job.dense_reads > 0)
    u.read_ratio = double(now.read_tokens - then.read_tokens) / layers / job.dense_reads;
}

void Engine::Impl::finish(Job& job, Finish why, Status error) {
  runner->abandon(job);
  Answer& a = job.answer;
  a.finish = why, a.error = std::move(error);
  if (job.detokenizer) {
    std::string rest = job.stops->push(job.detokenizer->finish());
    rest += job.stops->finish();
    a.text += rest;
    if (!rest.empty() && job.callbacks.on_text) job.callbacks.on_text(rest);
  }
  fill_usage(job);
  if (Session* s = job.session) {
    const int64_t forwarded = job.seq ? job.seq->logical() - int64_t(s->forwarded.size()) : 0;
    for (int64_t i = 0; i < forwarded; ++i)
      s->forwarded.push_back(i < job.prompt() ? job.request.ids[size_t(i)] : a.ids[size_t(i - job.prompt())]);
    const auto& ends = checkpoint.end_ids;
    const bool all = forwarded >= job.prompt() && !a.ids.empty();
    const bool ended = all && std::find(ends.begin(), ends.end(), a.ids.back()) != ends.end();
    s->unforwarded = all && !ended ? a.ids.back() : -1;
    s->seq = std::move(job.seq);
    s->busy = false;
  }
  scheduler->remove(&job);
  const auto node = jobs.extract(job.id);  // KV goes back before the answer is out
  node.mapped()->seq.reset();
  publish_stats();
  if (job.callbacks.on_done) job.callbacks.on_done(std::move(a));
  if (open_jobs.fetch_sub(1) == 1) {
    std::lock_guard lock(mutex);
    idle.notify_all();
  }
}

void Engine::Impl::drop_cancelled() {
  std::vector<Job*> gone;
  for (auto& [id, job] : jobs) {
    const bool mid_chunk = job->slice_tokens > 0 && job->plan->staging == Staging::kNone && job->session;
    if (job->cancelled && !mid_chunk)
      gone.push_back(job.get());  // a session's half-done chunk is finished first
  }
  for (Job* job : gone) finish(*job, Finish::kCancelled);
}

}  // namespace se
