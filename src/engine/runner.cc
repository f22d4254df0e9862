#include "engine/runner.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace se {
namespace {
constexpr int64_t kHeadRows = 32;  // rows of logits at a time
}

Runner::Runner(const Model& model, Compute compute, KvStore& store, Stream& stream)
    : model_(model),
      compute_(compute),
      stream_(stream),
      driver_(model.kv(compute), store, stream),
      slicer_(model.kv(compute), store, stream) {}

void Runner::head_rows(const TensorView& x,
                       std::span<const int64_t> rows,
                       const std::function<void(int64_t, std::span<const float>)>& use) {
  const int64_t hidden = model_.shape().hidden, vocab = model_.shape().vocab;
  for (size_t first = 0; first < rows.size(); first += kHeadRows) {
    const int64_t n = std::min<int64_t>(kHeadRows, int64_t(rows.size() - first));
    head_arena_.reset();
    const TensorView h = head_arena_.take(DType::kF32, {n, hidden});
    const TensorView logits = head_arena_.take(DType::kF32, {n, vocab});
    for (int64_t i = 0; i < n; ++i)
      std::memcpy(h.at<char>(i), x.at<char>(rows[first + size_t(i)]), size_t(hidden) * 4);
    model_.head(h, logits, compute_, head_arena_, stream_);
    for (int64_t i = 0; i < n; ++i) use(rows[first + size_t(i)], {logits.at<float>(i), size_t(vocab)});
  }
}

// x: hidden states of prompt tokens [first, first + n). The last token of the prompt always gets logits, the
// others if asked.
void Runner::prompt_logits(
    Job& job, const TensorView& x, int64_t first, bool to_the_end, const OnLogits& on_logits) {
  std::vector<int64_t> rows;
  if (job.request.prompt_logprobs >= 0) {
    rows.resize(size_t(x.shape[0]));
    std::iota(rows.begin(), rows.end(), 0);
  } else if (to_the_end) {
    rows.push_back(x.shape[0] - 1);
  }
  head_rows(
      x, rows, [&](int64_t row, std::span<const float> logits) { on_logits(job, first + row, logits); });
}

Status Runner::run(const StepWork& work,
                   const OnLogits& on_logits,
                   std::vector<std::pair<Job*, Status>>& failed) {
  std::vector<DriverRow> rows;
  std::vector<int32_t> ids;
  std::vector<Job*> jobs;
  for (Job* job : work.decode) {
    rows.push_back({job->seq.get(), 1, true, false});
    ids.push_back(job->next);
    jobs.push_back(job);
  }
  for (const Chunk& c : work.chunks) {
    rows.push_back({c.job->seq.get(), c.tokens, false, c.job->done + c.tokens == c.job->prompt()});
    const auto from = c.job->request.ids.begin() + c.job->done;
    ids.insert(ids.end(), from, from + c.tokens);
    jobs.push_back(c.job);
  }
  if (rows.empty()) return ok();
  SE_TRY(driver_.begin(rows));
  const int64_t tokens = int64_t(ids.size()), hidden = model_.shape().hidden;
  if (x_.bytes() < tokens * hidden * 4) {
    SE_ASSIGN(x_, Buffer::allocate(tokens * hidden * 4));
  }
  const TensorView x = TensorView::of(x_.data(), DType::kF32, {tokens, hidden});
  model_.embed(ids, x, stream_);
  for (int l = 0; l < model_.shape().layers; ++l) {
    arena_.reset();
    model_.layer(l, x, driver_, compute_, arena_, stream_);
  }
  const std::vector<Status> committed = driver_.commit();
  const int64_t decoding = int64_t(work.decode.size());
  std::vector<int64_t> last(static_cast<size_t>(decoding));
  std::iota(last.begin(), last.end(), 0);
  head_rows(x, last, [&](int64_t row, std::span<const float> logits) {
    on_logits(*work.decode[size_t(row)], -1, logits);
  });
  int64_t at = decoding;
  for (const Chunk& c : work.chunks) {
    const int64_t first = c.job->done;
    c.job->done += c.tokens;
    c.job->units_done = c.job->done * model_.shape().layers;
    prompt_logits(*c.job, x.slice(at, at + c.tokens), first, c.job->done == c.job->prompt(), on_logits);
    at += c.tokens;
  }
  for (size_t i = 0; i < committed.size(); ++i) {
    if (!committed[i].ok()) failed.emplace_back(jobs[i], committed[i]);
  }
  return ok();
}

Status Runner::run_slices(Job& job, int64_t token_layers, const OnLogits& on_logits, bool& through) {
  const int64_t hidden = model_.shape().hidden;
  through = false;
  if (job.slice_tokens == 0) {
    job.slice_first = job.done;
    job.slice_tokens = job.plan->staging == Staging::kLayer ? job.prompt() : next_chunk(job, token_layers);
    job.slice_layer = 0, job.slice_at = 0;
    SE_ASSIGN(job.hidden, Buffer::allocate(job.slice_tokens * hidden * 4));
    const TensorView x = TensorView::of(job.hidden.data(), DType::kF32, {job.slice_tokens, hidden});
    model_.embed(
        std::span(job.request.ids).subspan(size_t(job.slice_first), size_t(job.slice_tokens)), x, stream_);
  }
  const TensorView x = TensorView::of(job.hidden.data(), DType::kF32, {job.slice_tokens, hidden});
  bool chunk_through = false;
  if (job.plan->staging == Staging::kLayer) {
    SE_TRY(run_layer_major(job, token_layers, chunk_through));
  } else {
    SE_TRY(run_fixed_chunk(job, token_layers, chunk_through));
  }
  if (!chunk_through) return ok();
  const int64_t first = job.slice_first;
  job.done += job.slice_tokens;
  job.slice_tokens = 0;
  through = job.done == job.prompt();
  prompt_logits(job, x, first, through, on_logits);
  job.hidden = Buffer();
  return ok();
}

Status Runner::run_layer_major(Job& job, int64_t budget, bool& through) {
  const int layers = model_.shape().layers;
  const int64_t hidden = model_.shape().hidden, prompt = job.slice_tokens;
  const int64_t step = std::max<int64_t>(budget / layers, 16);
  const TensorView x = TensorView::of(job.hidden.data(), DType::kF32, {prompt, hidden});
  while (budget > 0 && job.slice_layer < layers) {
    if (job.slice_at == 0 && job.seeded) {
      SE_TRY(slicer_.seed_slice(*job.seq, job.slice_layer, *job.base->seq));
      job.slice_at = job.cached, job.units_done += job.cached;
    }
    const int64_t n = job.plan->next_slice(job.slice_at, prompt, step);
    SE_TRY(slicer_.begin_slice(*job.seq, job.slice_layer, job.slice_at, n));
    arena_.reset();
    model_.layer(
        job.slice_layer, x.slice(job.slice_at, job.slice_at + n), slicer_, compute_, arena_, stream_);
    SE_TRY(slicer_.end_slice());
    job.peak_bytes = std::max(job.peak_bytes, driver_.bytes(*job.seq));
    job.slice_at += n, job.units_done += n, budget -= n;
    if (job.slice_at == prompt) job.slice_at = 0, ++job.slice_layer;
  }
  if (job.slice_layer < layers) return ok();
  through = true;
  return slicer_.commit_prompt(*job.seq);
}

Status Runner::run_fixed_chunk(Job& job, int64_t budget, bool& through) {
  const int layers = model_.shape().layers;
  const TensorView x =
      TensorView::of(job.hidden.data(), DType::kF32, {job.slice_tokens, int64_t(model_.shape().hidden)});
  if (job.slice_layer == 0) {
    const DriverRow row{job.seq.get(), job.slice_tokens, false, job.done + job.slice_tokens == job.prompt()};
    SE_TRY(slicer_.begin(std::span(&row, 1)));
  }
  while (budget > 0 && job.slice_layer < layers) {
    arena_.reset();
    model_.layer(job.slice_layer, x, slicer_, compute_, arena_, stream_);
    ++job.slice_layer, budget -= job.slice_tokens, job.units_done += job.slice_tokens;
  }
  if (job.slice_layer < layers) return ok();
  through = true;
  return slicer_.commit().front();
}

void Runner::abandon(Job& job) {
  if (job.slice_tokens > 0 && job.plan->staging == Staging::kLayer) slicer_.abandon_prompt(*job.seq);
  job.slice_tokens = 0;
  job.hidden = Buffer();
}

}  // namespace se
