#include "sparseengine/engine.h"

#include <algorithm>
#include <fstream>

#include "device/cpu/isa.h"
#include "engine/engine_impl.h"

namespace se {
namespace {

// Bytes the system says can be had without swapping, and the cgroup allows.
int64_t available_memory() {
  int64_t bytes = int64_t{4} << 30;
  std::ifstream info("/proc/meminfo");
  for (std::string key; info >> key;) {
    if (key == "MemAvailable:") {
      info >> bytes;
      bytes *= 1024;
      break;
    }
    std::getline(info, key);
  }
  std::ifstream limit("/sys/fs/cgroup/memory.max"), used("/sys/fs/cgroup/memory.current");
  int64_t most = 0, now = 0;
  if (limit >> most && used >> now && most > now) bytes = std::min(bytes, most - now);
  return bytes;
}

}  // namespace

std::vector<std::array<int64_t, 2>> held_tokens(const PlanSequence& seq) {
  std::vector<std::array<int64_t, 2>> held;
  for (int g = 0; g < int(seq.kv().layout().groups().size()); ++g)
    held.push_back({seq.kv().table(g).paged, seq.kv().table(g).tail});
  return held;
}

const char* to_string(Finish finish) {
  switch (finish) {
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kCancelled:
      return "cancelled";
    case Finish::kError:
      return "error";
  }
  return "?";
}

Engine::Engine() : impl_(std::make_unique<Impl>()) {}

Engine::~Engine() {
  Impl& e = *impl_;
  if (!e.thread.joinable()) return;
  {
    std::lock_guard lock(e.mutex);
    e.stop = true;
  }
  e.wake.notify_one();
  e.thread.join();
}

Result<std::unique_ptr<Engine>> Engine::open(EngineOptions options) {
  SE_ASSIGN(const cpu::Isa isa, cpu::wanted_isa());
  std::unique_ptr<Engine> engine(new Engine());
  Impl& e = *engine->impl_;
  const int threads = options.threads > 0 ? options.threads : available_cores();
  if (threads > 1024) return invalid(format("{} threads: at most 1024", threads));
  LoadOptions loading;
  loading.threads = threads;
  if (options.on_load)
    loading.report = [&](int64_t done, int64_t total) {
      options.on_load(total ? double(done) / double(total) : 1);
    };
  SE_ASSIGN(e.checkpoint, load_checkpoint(options.model, loading));
  e.options = options;
  e.compute = options.exact ? Compute::kExact : Compute::kDefault;
  const ModelShape& shape = e.checkpoint.model->shape();
  auto tokenizer = text::Tokenizer::create(e.checkpoint.vocab);
  if (!tokenizer.ok()) return tokenizer.status().in(options.model);
  e.tokenizer = tokenizer.take();
  if (!e.checkpoint.chat_template.empty()) {
    auto chat_template = text::ChatTemplate::parse(e.checkpoint.chat_template);
    if (!chat_template.ok()) return chat_template.status().in(options.model);
    e.chat_template = chat_template.take();
  }
  const int64_t context = options.context > 0 ? options.context : std::min<int64_t>(shape.context, 32768);
  if (context > shape.context)
    return invalid(
        format("context {} is over the {} tokens that {} was made for", context, shape.context, shape.name));
  e.pool = std::make_unique<ThreadPool>(threads);
  e.stream = std::make_unique<Stream>(*e.pool);
  e.model_kv = e.checkpoint.model->kv(e.compute);
  const int64_t kv_bytes = options.kv_bytes > 0 ? options.kv_bytes : available_memory() / 10 * 4;
  SE_ASSIGN(e.store, KvStore::create(kv_bytes));
  SE_ASSIGN(e.dense, parse_plan("dense", e.model_kv));
  e.runner = std::make_unique<Runner>(*e.checkpoint.model, e.compute, *e.store, *e.stream);
  e.scheduler = std::make_unique<Scheduler>(
      SchedulerOptions{options.step_tokens, options.max_rows, kv_bytes, shape.layers});

  ModelInfo& i = e.info;
  i.name = shape.name, i.architecture = shape.architecture, i.path = options.model,
  i.weight_types = shape.weight_types;
  i.isa = cpu::to_string(isa), i.context = context, i.trained_context = shape.context, i.vocab = shape.vocab;
  i.parameters = shape.parameters, i.weight_bytes = shape.weight_bytes, i.kv_limit_bytes = kv_bytes;
  i.full_layers = e.model_kv.full_layers();
  i.layers = shape.layers, i.threads = threads, i.has_chat_template = e.chat_template.has_value();
  i.exact = options.exact;
  const GenerationDefaults& d = e.checkpoint.file.defaults();
  i.recommended.temperature = float(d.temperature.value_or(0));
  i.recommended.top_k = int(d.top_k.value_or(0));
  i.recommended.top_p = d.top_p.value_or(1) > 0 ? float(d.top_p.value_or(1)) : 1.0f;
  i.recommended.min_p = float(d.min_p.value_or(0));
  i.recommended.repetition_penalty = float(d.repetition_penalty.value_or(1));
  e.thread = std::thread([&e] { e.loop(); });
  return engine;
}

const ModelInfo& Engine::info() const { return impl_->info; }

Result<std::vector<int32_t>> Engine::tokenize(const std::string& t,
                                              bool add_special,
                                              bool parse_special) const {
  return impl_->tokenizer->encode(t, {add_special, parse_special});
}

std::string Engine::detokenize(std::span<const int32_t> ids, bool skip_special) const {
  return impl_->tokenizer->decode(ids, skip_special);
}

Result<std::shared_ptr<const Plan>> Engine::Impl::plan_of(const std::string& plan_text) {
  SE_ASSIGN(std::shared_ptr<const Plan> plan, parse_plan(plan_text, model_kv));
  auto& known = plans[plan->text];
  if (!known) known = plan;
  return known;
}

void Engine::Impl::start(std::unique_ptr<Job> job) {
  Job& j = *job;
  jobs[j.id] = std::move(job);
  if (Status s = accept(j); !s.ok()) {
    j.session = nullptr;  // a refused turn changes nothing
    return finish(j, Finish::kError, s);
  }
  if (j.session) j.session->busy = true, j.seq = std::move(j.session->seq);
  j.detokenizer.emplace(*tokenizer, j.request.skip_special);
  j.stops.emplace(j.request.stop);
  scheduler->add(&j);
}

uint64_t Engine::submit(Request request, Callbacks callbacks) {
  return submit_turn(0, std::move(request), std::move(callbacks));
}

uint64_t Engine::submit_turn(uint64_t session, Request request, Callbacks callbacks) {
  Impl& e = *impl_;
  auto job = std::make_shared<std::unique_ptr<Job>>(std::make_unique<Job>());
  Job& j = **job;
  j.id = j.request_id = e.next_id++;
  j.request = std::move(request), j.callbacks = std::move(callbacks);
  j.submitted = Clock::now();
  const uint64_t id = j.id;
  e.open_jobs++;
  e.post([&e, job, session] {
    if (session) {
      const auto s = e.sessions.find(session);
      if (s == e.sessions.end()) {
        Job& lost = **job;
        e.jobs[lost.id] = std::move(*job);
        return e.finish(lost, Finish::kError, not_found(format("there is no session {}", session)));
      }
      (*job)->session = s->second.get();
    }
    e.start(std::move(*job));
  });
  return id;
}

void Engine::cancel(uint64_t id) {
  Impl& e = *impl_;
  e.post([&e, id] {
    for (auto& [key, job] : e.jobs) {
      if (job->request_id == id) job->cancelled = true;
    }
  });
}

std::vector<Answer> Engine::run_all(Request request, Callbacks callbacks) {
  return impl_->wait(*this, 0, std::move(request), std::move(callbacks));
}

Answer Engine::run_turn(uint64_t session, Request request, Callbacks callbacks) {
  return std::move(impl_->wait(*this, session, std::move(request), std::move(callbacks)).front());
}

std::vector<Answer> Engine::Impl::wait(Engine& engine,
                                       uint64_t session,
                                       Request request,
                                       Callbacks callbacks) {
  std::vector<Answer> out;
  std::mutex m;
  std::condition_variable done;
  const size_t n = size_t(std::max(1, request.n));
  auto forward = std::move(callbacks.on_done);
  callbacks.on_done = [&](Answer a) {
    if (forward) forward(a);
    std::lock_guard lock(m);
    out.push_back(std::move(a));
    done.notify_one();
  };
  engine.submit_turn(session, std::move(request), std::move(callbacks));
  std::unique_lock lock(m);
  done.wait(lock, [&] { return out.size() == n; });
  std::sort(out.begin(), out.end(), [](const Answer& a, const Answer& b) { return a.choice < b.choice; });
  return out;
}

Answer Engine::run(Request request, Callbacks callbacks) {
  return std::move(run_all(std::move(request), std::move(callbacks)).front());
}

Result<uint64_t> Engine::open_session(const std::string& plan_text) {
  Impl& e = *impl_;
  return e.ask<Result<uint64_t>>([&]() -> Result<uint64_t> {
    auto s = std::make_unique<Session>();
    SE_ASSIGN(s->plan, e.plan_of(plan_text));
    s->id = e.next_id++;
    const uint64_t id = s->id;
    e.sessions[id] = std::move(s);
    return id;
  });
}

std::vector<int32_t> Engine::session_ids(uint64_t session) const {
  Impl& e = *impl_;
  return e.ask<std::vector<int32_t>>([&]() -> std::vector<int32_t> {
    const auto s = e.sessions.find(session);
    return s == e.sessions.end() ? std::vector<int32_t>() : s->second->forwarded;
  });
}

void Engine::close_session(uint64_t session) {
  Impl& e = *impl_;
  e.post([&e, session] {
    const auto s = e.sessions.find(session);
    if (s == e.sessions.end()) return;
    for (auto& [id, job] : e.jobs) {
      if (job->session == s->second.get()) job->session = nullptr, job->cancelled = true;
      if (job->base == s->second.get()) job->base = nullptr, job->cancelled = true;
    }
    e.sessions.erase(s);
  });
}

Result<PlanPrice> Engine::price(const std::string& plan_text, int64_t prompt, int64_t max_new) const {
  Impl& e = *impl_;
  SE_ASSIGN(const std::shared_ptr<const Plan> plan, parse_plan(plan_text, e.model_kv));
  SeqView view;
  view.prompt = prompt, view.max_new = max_new;
  const Cost c = plan->cost(view);
  return PlanPrice{plan->text,
                   c.resident_bytes,
                   c.peak_bytes,
                   c.transient_bytes,
                   c.read_bytes,
                   e.dense->cost(view).resident_bytes,
                   c.resident_tokens,
                   c.read_tokens};
}

Engine::Stats Engine::stats() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

void Engine::drain() {
  std::unique_lock lock(impl_->mutex);
  impl_->idle.wait(lock, [&] { return impl_->open_jobs.load() == 0; });
}

}  // namespace se
