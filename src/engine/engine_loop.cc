// The engine's thread: messages, admission, a step, what its logits mean.
#include <algorithm>
#include <cmath>

#include "device/cpu/thread_pool.h"
#include "engine/engine_impl.h"
#include "kernels/sample/sample.h"

namespace se {
namespace {

TokenAlternatives alternatives(std::span<const float> logits, int32_t id, int n) {
  TokenAlternatives a;
  a.id = id, a.logprob = logprob_of(logits, id);
  for (const TokenLogprob& t : top_logprobs(logits, n)) a.top.emplace_back(t.id, t.logprob);
  return a;
}

}  // namespace

void Engine::Impl::post(std::function<void()> f) {
  {
    std::lock_guard lock(mutex);
    inbox.push_back(std::move(f));
  }
  wake.notify_one();
}

void Engine::Impl::loop() {
  const OnCpus bound = pool->bind_caller();
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
      const bool attach = job->cached > 0 && !job->seeded;
      auto seq =
          attach ? runner->driver().attach(job->plan, *job->base->seq) : runner->driver().open(job->plan);
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
  // Weights are read where they lie in the file: of a step that met a torn one, nothing is told.
  const auto logits = [this](Job& job, int64_t index, std::span<const float> l) {
    if (intact()) on_logits(job, index, l);
  };
  std::vector<std::pair<Job*, Status>> failed;
  store->arena().reset_peak();
  const int64_t live = store->arena().live_bytes();
  for (Job* job : work.decode) job->dense_reads += double(job->seq->logical());
  const bool traced = trace_step(work);
  Status ran = runner->run(work, logits, failed);
  if (traced) runner->driver().trace({}, false);
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
  if (!intact()) return fail_all(), true;
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
  for (Job* job : done) finish(*job, job->answer.finish, job->answer.error);
  return true;
}

bool Engine::Impl::intact() {
  if (damage.ok()) damage = checkpoint.file.check();
  return damage.ok();
}

void Engine::Impl::fail_all() {
  std::vector<Job*> all;
  for (auto& [id, job] : jobs) all.push_back(job.get());
  for (Job* job : all) finish(*job, Finish::kError, damage);
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
  if (index >= 0) {  // a prompt token: its logits speak of the next one
    if (job.request.prompt_logprobs >= 0) {
      auto& out = job.answer.prompt_logprobs;
      if (out.empty()) out.resize(size_t(job.prompt()));
      out[0].id = job.request.ids[0];
      if (index + 1 < job.prompt())
        out[size_t(index) + 1] =
            alternatives(logits, job.request.ids[size_t(index) + 1], job.request.prompt_logprobs);
    }
    if (index + 1 < job.prompt()) return;
    job.first_token = job.last_token = Clock::now();
    job.answer.timing.first_token_s = std::chrono::duration<double>(job.first_token - job.submitted).count();
    job.answer.timing.prefill_s = std::chrono::duration<double>(job.first_token - job.started).count();
    if (job.request.trace && job.callbacks.on_kept) tell_kept(job);
    if (job.request.n > 1) branch(job, logits);
    first_token(job, logits);
    return;
  }
  const auto now = Clock::now();
  job.answer.timing.token_s.push_back(std::chrono::duration<float>(now - job.last_token).count());
  job.last_token = now;
  take_token(job, logits);
}

void Engine::Impl::first_token(Job& job, std::span<const float> logits) {
  job.state = Job::State::kDecode;
  if (job.request.max_tokens == 0) {
    job.answer.finish = Finish::kLength;
    return;
  }
  take_token(job, logits);
}

// The token that the logits, the rules and the seed choose; -1 (and the job's error) if the rules leave none.
int32_t Engine::Impl::choose_token(Job& job, std::span<const float> logits) {
  const Request& r = job.request;
  if (!r.forced.empty()) return r.forced[job.answer.ids.size()];
  const Sampling& s = r.sampling;
  SampleParams p;
  p.temperature = s.temperature, p.top_k = s.top_k, p.top_p = s.top_p, p.min_p = s.min_p, p.seed = s.seed;
  p.choice = uint64_t(job.choice);
  const uint64_t position = uint64_t(job.seq->logical());
  if (!job.rules.any()) return sample(logits, p, position);
  adjusted.assign(logits.begin(), logits.end());
  apply(job.rules, job.history, adjusted);
  const int32_t id = sample(adjusted, p, position);
  if (std::isinf(adjusted[size_t(id)]) && adjusted[size_t(id)] < 0) {
    job.answer.error =
        invalid(format("no token is left to sample at position {}: allowed ids, bad words, "
                       "biases and min_tokens exclude all",
                       position));
    return -1;
  }
  job.history.add_answer(id);
  return id;
}

// Samples one token; job.next < 0 afterwards: the answer is complete.
void Engine::Impl::take_token(Job& job, std::span<const float> logits) {
  const Request& r = job.request;
  Answer& a = job.answer;
  const auto end = [&](Finish why) { a.finish = why, job.next = -1; };
  if (job.callbacks.on_logits) job.callbacks.on_logits(logits, int64_t(a.ids.size()), job.choice);
  const int32_t id = choose_token(job, logits);
  if (id < 0) return end(Finish::kError);
  a.ids.push_back(id);
  job.next = id;
  if (r.logprobs >= 0) a.logprobs.push_back(alternatives(logits, id, r.logprobs));
  const int64_t n = int64_t(a.ids.size());
  const bool late = n < r.min_tokens;  // too early to stop
  const auto is_in = [&](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  const bool forced = !r.forced.empty();
  if (!forced && ((!r.ignore_eos && is_in(checkpoint.end_ids)) || is_in(r.stop_ids))) {
    if (r.include_stop) show(job, job.detokenizer->push(id));
    return end(Finish::kStop);
  }
  const std::string piece = job.detokenizer->push(id);
  const std::string shown = late || forced ? piece : job.stops->push(piece);
  show(job, shown);
  if (!forced && job.stops->stopped()) {
    if (r.include_stop) show(job, job.stops->found());
    end(Finish::kStop);
  } else if (n >= r.max_tokens) {
    end(Finish::kLength);
  }
}

void Engine::Impl::show(Job& job, const std::string& text) {
  job.answer.text += text;
  if (!text.empty() && job.callbacks.on_text) job.callbacks.on_text(text, job.choice);
}

std::vector<float> prompt_reads(const KvCounters& now, const KvCounters& before) {
  std::vector<float> out;
  for (size_t n = 0; n < now.prompt.size(); ++n) {
    const auto then = n < before.prompt.size() ? before.prompt[n] : KvCounters::PromptReads();
    const int64_t read = now.prompt[n].read - then.read, seen = now.prompt[n].seen - then.seen;
    out.push_back(seen > 0 ? float(double(read) / double(seen)) : 1.f);
  }
  return out;
}

double mean_of_full_layers(std::span<const float> by_layer, const ModelKv& model) {
  if (by_layer.empty()) return 1;
  double sum = 0;
  for (size_t n = 0; n < by_layer.size(); ++n) {
    if (model.layers[n].kind == LayerKind::kFull) sum += double(by_layer[n]);
  }
  return sum / std::max(1, model.full_layers());
}

void Engine::Impl::fill_usage(Job& job) {
  Answer& a = job.answer;
  a.usage.prompt_tokens = job.prompt() + (job.seeded ? 0 : job.cached);
  a.usage.cached_tokens = job.cached;
  a.usage.completion_tokens = int64_t(a.ids.size());
  a.timing.decode_s = 0;
  for (float t : a.timing.token_s) a.timing.decode_s += double(t);
  KvUsage& u = a.usage.kv;
  u.plan = job.plan ? job.plan->text : job.request.plan;
  if (!job.seq) return;
  const int layers = std::max(1, model_kv.full_layers());
  u.logical_tokens = job.seq->logical();
  int64_t sum = 0;
  for (size_t n = 0; n < model_kv.layers.size(); ++n) {
    if (model_kv.layers[n].kind != LayerKind::kFull) continue;
    const int l = int(n);
    sum += job.seq->kv().resident(l);
    u.resident_tokens_max = std::max(u.resident_tokens_max, job.seq->kv().resident(l));
  }
  u.resident_tokens = double(sum) / layers;
  u.resident_bytes = runner->bytes(*job.seq);
  u.peak_bytes = std::max(job.peak_bytes, u.resident_bytes);
  u.predicted_resident_bytes = job.price.resident_bytes, u.predicted_peak_bytes = job.price.peak_bytes;
  SeqView held;  // what the same tokens would take
  held.prompt = job.seq->logical(), held.max_new = 1;
  u.dense_bytes = dense->cost(held).resident_bytes;
  const KvCounters &now = job.seq->counters(), &then = job.counters_before;
  const double steps = double(now.decode_steps - then.decode_steps);
  if (steps > 0) u.read_tokens = double(now.read_tokens - then.read_tokens) / steps / layers;
  u.prompt_read_by_layer = prompt_reads(now, then);
  u.prompt_read_ratio = mean_of_full_layers(u.prompt_read_by_layer, model_kv);
  if (job.dense_reads > 0)
    u.read_ratio = double(now.read_tokens - then.read_tokens) / layers / job.dense_reads;
}

void Engine::Impl::finish(Job& job, Finish why, Status error) {
  runner->abandon(job);
  Answer& a = job.answer;
  a.finish = why, a.error = std::move(error), a.choice = job.choice;
  if (job.detokenizer) {
    const std::string rest = job.stops->push(job.detokenizer->finish());
    show(job, rest + job.stops->finish());
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
  if (job.base) --job.base->users;
  scheduler->remove(&job);
  const auto node = jobs.extract(job.id);  // KV goes back before the answer is out
  node.mapped()->seq.reset();
  publish_stats();
  if (job.callbacks.on_done) {
    // A request that ends before its choices part ends all of them.
    for (int c = 1; !job.branched && job.choice == 0 && c < job.request.n; ++c) {
      Answer same = a;
      same.choice = c;
      job.callbacks.on_done(std::move(same));
    }
    job.callbacks.on_done(std::move(a));
  }
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
