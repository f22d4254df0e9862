// Engine::bench: prompts and decode steps at a depth, timed one by one, bytes counted by the store.
#include <algorithm>

#include "base/rng.h"
#include "engine/engine_impl.h"

namespace se {
namespace {

struct Bench {
  Engine::Impl& e;
  const Engine::BenchCase& c;
  std::vector<std::unique_ptr<Job>> jobs, beside;  // beside: those from depth 0, for steps in turn
  std::vector<int32_t> forwarded;                  // by the first job: what a file of it says
  Rng rng{20260101};

  int32_t random_id() { return int32_t(rng.below(e.info.vocab)); }

  // One more prompt of `tokens` random tokens through every job, one job after another.
  Status prefill(int64_t tokens) {
    const auto none = [](Job&, int64_t, std::span<const float>) {};
    for (auto& job : jobs) {
      job->request.ids.resize(size_t(tokens));
      for (int32_t& id : job->request.ids) id = random_id();
      if (job == jobs.front()) forwarded = job->request.ids;
      job->done = 0;
      job->seq->start_turn(tokens, c.decode + 1);
      if (job->plan->staging == Staging::kLayer) {
        for (bool through = false; !through;)
          SE_TRY(e.runner->run_slices(*job, e.options.step_tokens * e.info.layers, none, through));
        continue;
      }
      while (job->done < job->prompt()) {
        StepWork work;
        work.chunks.push_back({job.get(), next_chunk(*job, e.options.step_tokens)});
        std::vector<std::pair<Job*, Status>> failed;
        SE_TRY(e.runner->run(work, none, failed));
        if (!failed.empty()) return failed.front().second;
      }
    }
    return ok();
  }

  Status save() {
    Session s;
    s.plan = jobs.front()->plan, s.forwarded = forwarded, s.seq = std::move(jobs.front()->seq);
    const Status written = e.write_session(s, c.kv_save, {});
    jobs.front()->seq = std::move(s.seq);
    return written;
  }

  // The depth of every row from a session.
  Status go_on(const Session& s, const std::shared_ptr<const Plan>& plan) {
    Driver& driver = e.runner->driver();
    if (s.seq->logical() != c.depth)
      return invalid(format("the session holds {} tokens, the depth is {}", s.seq->logical(), c.depth));
    if (s.plan->text != plan->text && !Driver::can_attach(*plan, *s.seq))
      return invalid(
          format("the session holds the KV of {}, which {} cannot go on from", s.plan->text, plan->text));
    for (auto& job : jobs) {
      if (s.plan->text == plan->text) {
        SE_ASSIGN(job->seq, driver.fork(*s.seq));
      } else {
        SE_ASSIGN(job->seq, driver.attach(plan, *s.seq));
      }
      job->seq->start_turn(0, c.decode + 1);
    }
    return ok();
  }

  // KV of `tokens` tokens from random numbers, no model.
  Status fill(int64_t tokens) {
    Driver& driver = e.runner->driver();
    driver.fill_only(true);
    Status s = ok();
    for (auto& job : jobs) {
      job->seq->start_turn(tokens, c.decode + 1);
      for (int64_t first = 0; first < tokens && s.ok();) {
        job->request.ids.resize(size_t(tokens));
        job->done = first;
        const bool layer_major = job->plan->staging == Staging::kLayer;
        const int64_t n = layer_major ? tokens : next_chunk(*job, 2048);
        s = fill_chunk(driver, *job, first, n, layer_major);
        first += n;
      }
    }
    driver.fill_only(false);
    return s;
  }

  Status fill_chunk(Driver& driver, Job& job, int64_t first, int64_t n, bool layer_major) {
    Arena arena;
    if (!layer_major) {
      const DriverRow row{job.seq.get(), n, false, first + n == job.prompt()};
      SE_TRY(driver.begin(std::span(&row, 1)));
    }
    for (int l = 0; l < e.info.layers; ++l) {
      const LayerKv& layer = e.model_kv.layers[size_t(l)];
      if (layer_major) SE_TRY(driver.begin_slice(*job.seq, l, first, n));
      arena.reset();
      const auto noise = [&](int64_t width) {
        const TensorView t = arena.take(DType::kF32, {n, width});
        float* x = t.ptr<float>();
        uint32_t state = uint32_t(l * 7919 + first + width);
        for (int64_t i = 0; i < n * width; ++i)
          x[i] = float(int32_t(state = state * 1664525u + 1013904223u)) * 0x1p-31f;
        return t;
      };
      const TensorView q = noise(int64_t(layer.q_heads) * layer.q_dim()),
                       k = noise(int64_t(layer.kv_heads) * layer.k_dim),
                       v = layer.latent() ? TensorView() : noise(int64_t(layer.kv_heads) * layer.v_dim);
      const TensorView out = arena.take(DType::kF32, {n, int64_t(layer.q_heads) * layer.out_dim()});
      driver.attend(l, q, k, v, out, *e.stream);
      if (layer_major) SE_TRY(driver.end_slice());
    }
    return layer_major ? driver.commit_prompt(*job.seq) : driver.commit().front();
  }

  Status open(const std::shared_ptr<const Plan>& plan, std::vector<std::unique_ptr<Job>>& to) {
    for (int b = 0; b < c.batch; ++b) {
      auto job = std::make_unique<Job>();
      job->plan = plan;
      SE_ASSIGN(job->seq, e.runner->driver().open(plan));
      job->state = Job::State::kPrefill;
      to.push_back(std::move(job));
    }
    return ok();
  }

  StepWork decode_of(std::vector<std::unique_ptr<Job>>& of) {
    StepWork work;
    for (auto& job : of) {
      job->state = Job::State::kDecode, job->next = random_id();
      work.decode.push_back(job.get());
    }
    return work;
  }

  // One step; its seconds.
  Result<double> step(StepWork& work) {
    std::vector<std::pair<Job*, Status>> failed;
    const auto pick = [&](Job& job, int64_t, std::span<const float>) { job.next = random_id(); };
    const auto from = Clock::now();
    SE_TRY(e.runner->run(work, pick, failed));
    const double seconds = seconds_since(from);
    if (!failed.empty()) return failed.front().second;
    return seconds;
  }

  // c.decode steps of both, kTurn of each at a time.
  static constexpr int64_t kTurn = 9;
  Status in_turn(const std::shared_ptr<const Plan>& plan, StepWork& work, Engine::BenchResult& r) {
    SE_TRY(open(plan, beside));
    for (auto& job : beside) job->seq->start_turn(0, c.decode);
    StepWork other = decode_of(beside);
    for (int64_t left = c.decode; left > 0; left -= kTurn) {
      double own = 0, zero = 0;
      const int64_t n = std::min(left, kTurn);
      for (int64_t i = 0; i < n; ++i) {
        SE_ASSIGN(const double s, step(work));
        r.seconds.push_back(s);
        own += i > 0 ? s : 0;
      }
      for (int64_t i = 0; i < n; ++i) {
        SE_ASSIGN(const double s, step(other));
        zero += i > 0 ? s : 0;
      }
      if (n == kTurn) r.over_depth_0.push_back(own / zero);
    }
    return ok();
  }

  Result<Engine::BenchResult> run() {
    SE_ASSIGN(const std::shared_ptr<const Plan> plan, e.plan_of(c.plan));
    const int64_t life = c.depth + c.prompt + c.decode;
    if (life > e.info.context)
      return invalid(format(
          "{} + {} + {} tokens are over the context of {}", c.depth, c.prompt, c.decode, e.info.context));
    if (life == 0) return invalid("nothing to measure: prompt, decode and depth are 0");
    Session* depth = nullptr;
    if (c.from != 0) {
      const auto found = e.sessions.find(c.from);
      if (found == e.sessions.end()) return not_found(format("there is no session {}", c.from));
      depth = found->second.get();
      if (depth->busy || !depth->seq) return invalid("the session has no tokens yet, or a turn is running");
    }
    e.store->arena().reset_peak();
    const int64_t live = e.store->arena().live_bytes() - (depth ? e.runner->bytes(*depth->seq) : 0);
    SE_TRY(open(plan, jobs));
    Engine::BenchResult r;
    // Two turns at most: the depth, then the prompt; decode follows the last one.
    const bool two = c.depth > 0 && c.prompt > 0;
    SeqView view;
    view.prompt = two ? c.depth : c.depth + c.prompt, view.max_new = two ? 1 : c.decode + 1;
    Cost cost = plan->cost(view);
    if (depth) {
      SE_TRY(go_on(*depth, plan));
    } else if (c.depth > 0) {
      SE_TRY(c.synthetic_fill ? fill(c.depth) : prefill(c.depth));
      if (!c.kv_save.empty()) SE_TRY(save());
    }
    SeqView whole = view;
    whole.prompt = c.depth + c.prompt, whole.max_new = c.decode + 1;
    if (two) {
      SeqView turn = whole;
      turn.logical = c.depth, turn.prompt = c.prompt;
      const Cost second = plan->cost(turn, held_tokens(*jobs.front()->seq));
      const int64_t first_peak = cost.peak_bytes;
      cost = second;
      cost.peak_bytes = std::max(first_peak, second.peak_bytes);
    }
    r.price = {plan->text,
               cost.resident_bytes,
               cost.peak_bytes,
               cost.transient_bytes,
               cost.read_bytes,
               e.dense->cost(whole).resident_bytes,
               cost.resident_tokens,
               cost.read_tokens};
    if (c.prompt > 0) {
      const auto from = Clock::now();
      SE_TRY(prefill(c.prompt));
      r.seconds.push_back(seconds_since(from));
    }
    if (c.depth + c.prompt == 0) {
      for (auto& job : jobs) job->seq->start_turn(0, c.decode);
    }
    StepWork work = decode_of(jobs);
    if (c.in_turn) SE_TRY(in_turn(plan, work, r));
    while (int64_t(r.seconds.size()) < c.decode + (c.prompt > 0 ? 1 : 0)) {
      SE_ASSIGN(const double s, step(work));
      r.seconds.push_back(s);
    }
    for (double s : r.seconds) r.total_s += s;
    int64_t others = live;
    for (auto& job : beside) others += e.runner->bytes(*job->seq);
    r.peak_kv_bytes = e.store->arena().peak_bytes() - others;
    for (auto& job : jobs) {
      r.kv_bytes += e.runner->bytes(*job->seq);
      const int full = std::max(1, e.model_kv.full_layers());
      for (int l = 0; l < e.info.layers; ++l) {
        if (e.model_kv.layers[size_t(l)].kind == LayerKind::kFull)
          r.resident_tokens += double(job->seq->kv().resident(l)) / full / c.batch;
      }
      const KvCounters& k = job->seq->counters();
      if (k.decode_steps > 0)
        r.read_tokens += double(k.read_tokens) / double(k.decode_steps) / full / c.batch;
      if (const auto reads = prompt_reads(k, {}); !reads.empty())
        r.prompt_read_ratio += (mean_of_full_layers(reads, e.model_kv) - 1) / c.batch;
    }
    return r;
  }
};

}  // namespace

Result<Engine::BenchResult> Engine::bench(const BenchCase& c) {
  if (c.batch < 1 || c.batch > impl_->options.max_rows)
    return invalid(format("batch {}: 1 to {}", c.batch, impl_->options.max_rows));
  if (c.in_turn && c.decode < Bench::kTurn)
    return invalid(format("steps in turn: {} to decode, wanted {} or more", c.decode, Bench::kTurn));
  return impl_->ask<Result<BenchResult>>([&]() -> Result<BenchResult> {
    return Bench{*impl_, c, {}, {}, {}}.run();
  });
}

}  // namespace se
