// Several answers to one prompt: the first choice runs the prompt, the others fork its KV and go on by
// themselves.
#include "engine/engine_impl.h"

namespace se {

void Engine::Impl::branch(Job& first, std::span<const float> logits) {
  const int n = first.request.n;
  const int64_t each = first.reserved / n;
  first.branched = true;
  for (int c = 1; c < n; ++c) {
    auto job = std::make_unique<Job>();
    Job& j = *job;
    j.id = next_id++, j.request_id = first.request_id, j.choice = c;
    j.request = first.request, j.callbacks = first.callbacks;
    j.plan = first.plan, j.price = first.price;
    j.base = first.base, j.cached = first.cached, j.seeded = first.seeded;
    if (j.base) ++j.base->users;
    j.rules = first.rules, j.history = first.history;
    j.submitted = first.submitted, j.started = first.started;
    j.first_token = j.last_token = first.first_token;
    j.answer.timing = first.answer.timing;
    j.answer.prompt_logprobs = first.answer.prompt_logprobs;
    j.counters_before = first.counters_before;
    j.units_done = first.units_done, j.units_total = first.units_total, j.done = first.done;
    j.detokenizer.emplace(*tokenizer, j.request.skip_special);
    j.stops.emplace(j.request.stop);
    open_jobs++;
    jobs[j.id] = std::move(job);
    scheduler->branch(first, j, each);
    auto seq = runner->driver().fork(*first.seq);
    if (!seq.ok()) {
      finish(j, Finish::kError, seq.status());
      continue;
    }
    j.seq = seq.take();
    first_token(j, logits);
  }
}

}  // namespace se
