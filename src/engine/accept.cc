// What a request must satisfy before it waits for its turn, and what it is turned into.
#include <algorithm>
#include <cmath>
#include <set>

#include "engine/engine_impl.h"

namespace se {
namespace {

// Keeps the last ids of a prompt that may be cut (never silently: Request::truncate_prompt).
Status truncate_prompt(Request& r, int64_t room) {
  if (r.truncate_prompt == 0) return ok();
  if (r.truncate_prompt < -1)
    return invalid(format("truncate_prompt {}: a number of tokens, or -1", r.truncate_prompt));
  const int64_t most = r.truncate_prompt < 0 ? room : r.truncate_prompt;
  if (const int64_t n = int64_t(r.ids.size()); n > most && most > 0)
    r.ids.erase(r.ids.begin(), r.ids.end() - most);
  return ok();
}

Status in_range(const char* name, float value, float min, float max) {
  if (value >= min && value <= max) return ok();
  return invalid(format("{} {}: {} to {}", name, value, min, max));
}

}  // namespace

Status Engine::Impl::check_sampling(const Job& job) const {
  const Request& r = job.request;
  const Sampling& s = r.sampling;
  if (!(s.temperature >= 0) || std::isinf(s.temperature))
    return invalid(format("temperature {}: at least 0", s.temperature));
  if (s.top_k < 0) return invalid(format("top_k {}: at least 0", s.top_k));
  if (!(s.top_p > 0 && s.top_p <= 1)) return invalid(format("top_p {}: over 0, at most 1", s.top_p));
  SE_TRY(in_range("min_p", s.min_p, 0, 1));
  SE_TRY(in_range("frequency_penalty", s.frequency_penalty, -2, 2));
  SE_TRY(in_range("presence_penalty", s.presence_penalty, -2, 2));
  if (!(s.repetition_penalty > 0) || std::isinf(s.repetition_penalty))
    return invalid(format("repetition_penalty {}: over 0", s.repetition_penalty));
  if (r.n < 1 || r.n > options.max_rows) return invalid(format("n {}: 1 to {}", r.n, options.max_rows));
  if (r.n > 1 && job.session) return invalid("a turn of a session has one answer, n must be 1");
  if (r.min_tokens < 0) return invalid(format("min_tokens {}: at least 0", r.min_tokens));
  if (r.min_tokens > r.max_tokens)
    return invalid(format("min_tokens {} is over max_tokens {}", r.min_tokens, r.max_tokens));
  const auto known = [&](const char* name, int32_t id) {
    if (id >= 0 && id < info.vocab) return ok();
    return invalid(format("{}: token id {} is outside the vocabulary of {} tokens", name, id, info.vocab));
  };
  for (int32_t id : s.allowed_ids) SE_TRY(known("allowed_ids", id));
  for (int32_t id : r.stop_ids) SE_TRY(known("stop_ids", id));
  for (int32_t id : r.forced) SE_TRY(known("forced", id));
  for (const auto& [id, value] : s.logit_bias) {
    SE_TRY(known("logit_bias", id));
    SE_TRY(in_range("logit_bias", value, -100, 100));
  }
  return ok();
}

// Bad words are looked for as they stand and, inside a text, after a space, as vLLM does.
Result<LogitRules> Engine::Impl::logit_rules(const Request& r) const {
  const Sampling& s = r.sampling;
  LogitRules rules;
  rules.repetition = s.repetition_penalty;
  rules.frequency = s.frequency_penalty, rules.presence = s.presence_penalty;
  rules.bias = s.logit_bias, rules.allowed = s.allowed_ids;
  rules.min_tokens = r.min_tokens, rules.late = r.stop_ids;
  if (!r.ignore_eos)
    rules.late.insert(rules.late.end(), checkpoint.end_ids.begin(), checkpoint.end_ids.end());
  std::set<std::vector<int32_t>> bad;
  for (const std::string& word : s.bad_words) {
    for (const char* before : {"", " "}) {
      std::vector<int32_t> ids = tokenizer->encode(before + word, {false, false});
      if (ids.empty()) return invalid("bad_words: a word is empty");
      bad.insert(std::move(ids));
    }
  }
  rules.bad.assign(bad.begin(), bad.end());
  return rules;
}

// What the prompt takes over from the session it begins with.
Status Engine::Impl::accept_base(Job& job) {
  Request& r = job.request;
  const auto found = sessions.find(r.base);
  if (found == sessions.end()) return not_found(format("base: there is no session {}", r.base));
  Session& s = *found->second;
  if (job.session) return invalid("base: a turn of a session goes on from that session alone");
  if (s.busy) return invalid("base: the session has a turn that is still running");
  if (r.prompt_logprobs >= 0) return invalid("base: prompt_logprobs need the whole prompt, leave base out");
  if (!s.seq || s.forwarded.empty()) return ok();
  const int64_t rest = int64_t(r.ids.size());
  if (Driver::can_attach(*job.plan, *s.seq)) {
    job.cached = s.seq->logical();
  } else {
    job.seeded = Driver::can_seed(*job.plan, *s.seq) && rest >= job.plan->last_chunk;
    if (job.seeded) job.cached = s.seq->logical();
    r.ids.insert(r.ids.begin(), s.forwarded.begin(), s.forwarded.end());
  }
  job.base = &s;
  ++s.users;
  return ok();
}

Status Engine::Impl::accept(Job& job) {
  SE_TRY(damage);
  Request& r = job.request;
  if (job.session) {
    job.plan = job.session->plan;
    if (job.session->busy) return invalid("the session has a turn that is still running");
    if (job.session->users > 0) return invalid("requests go on from the session, it takes no turn meanwhile");
    if (job.session->unforwarded >= 0) r.ids.insert(r.ids.begin(), job.session->unforwarded);
  } else {
    SE_ASSIGN(job.plan, plan_of(r.plan));
  }
  if (r.ids.empty()) return invalid("the prompt is empty: at least one token is needed");
  SE_TRY(check_sampling(job));
  for (int32_t id : r.ids) {
    if (id < 0 || id >= info.vocab)
      return invalid(format("token id {} is outside the vocabulary of {} tokens", id, info.vocab));
  }
  if (r.max_tokens < 0) return invalid(format("max_tokens {}: at least 0", r.max_tokens));
  if (!r.forced.empty()) r.max_tokens = int64_t(r.forced.size());
  if (r.base) SE_TRY(accept_base(job));
  const int64_t attached = job.seeded ? 0 : job.cached;
  const int64_t held = attached + (job.session && job.session->seq ? job.session->seq->logical() : 0);
  SE_TRY(truncate_prompt(r, info.context - held));
  const int64_t prompt = int64_t(r.ids.size());
  if (held + prompt > info.context)
    return invalid(format("the prompt has {} tokens{}, the context holds {}",
                          prompt,
                          held ? format(" after {} of earlier turns", held) : "",
                          info.context));
  if (!r.forced.empty() && held + prompt + r.max_tokens - 1 > info.context)
    return invalid(format("the prompt of {} tokens and {} forced ones are over the context of {}",
                          held + prompt,
                          r.max_tokens,
                          info.context));
  r.max_tokens =
      std::min(r.max_tokens, info.context - held - prompt + 1);  // the last token sampled is not forwarded
  SeqView view;
  view.prompt = attached + prompt, view.max_new = r.max_tokens, view.logical = held - attached;
  std::vector<std::array<int64_t, 2>> groups;
  if (view.logical > 0) groups = held_tokens(*job.session->seq);
  job.price = job.plan->cost(view, groups);
  job.reserved = job.price.peak_bytes * r.n;  // every choice may come to own all of its pages
  if (job.reserved > info.kv_limit_bytes)
    return exhausted(
        format("the request needs {:.1f} MiB of KV at its peak, the arena has {:.1f} MiB (plan {})",
               double(job.reserved) / 1048576,
               double(info.kv_limit_bytes) / 1048576,
               job.plan->text));
  SE_ASSIGN(job.rules, logit_rules(r));
  if (job.rules.any()) job.history.add_prompt(r.ids);
  return ok();
}

}  // namespace se
