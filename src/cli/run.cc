// sparse-engine run, methods.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fmt.h"
#include "cli/cli.h"

namespace se::cli {
namespace {

using nlohmann::ordered_json;

struct RunFlags {
  ModelFlags model;
  SamplingFlags sampling;
  PromptFlags prompt;
  KvFiles kv;
  CLI::Option* plan_option = nullptr;
  std::string plan = "dense";
  bool json = false;
  Request request;
};

// Invalid UTF-8 cannot be written as JSON; it becomes U+FFFD.
std::string dump(const ordered_json& o) {
  return o.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json alternatives(const std::vector<TokenAlternatives>& list, bool first_is_null) {
  ordered_json out = ordered_json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    if (first_is_null && i == 0) {
      out.push_back(nullptr);
      continue;
    }
    ordered_json o = ordered_json::object();
    for (const auto& [id, logprob] : list[i].top) o[std::to_string(id)] = logprob;
    o[std::to_string(list[i].id)] = list[i].logprob;
    out.push_back(std::move(o));
  }
  return out;
}

ordered_json usage_json(const Usage& u) {
  const KvUsage& k = u.kv;
  return {{"prompt_tokens", u.prompt_tokens},
          {"completion_tokens", u.completion_tokens},
          {"cached_tokens", u.cached_tokens},
          {"kv",
           {{"plan", k.plan},
            {"logical_tokens", k.logical_tokens},
            {"resident_tokens", k.resident_tokens},
            {"resident_tokens_max", k.resident_tokens_max},
            {"resident_bytes", k.resident_bytes},
            {"peak_bytes", k.peak_bytes},
            {"predicted_resident_bytes", k.predicted_resident_bytes},
            {"predicted_peak_bytes", k.predicted_peak_bytes},
            {"dense_bytes", k.dense_bytes},
            {"read_tokens", k.read_tokens},
            {"read_ratio", k.read_ratio},
            {"prompt_read_ratio", k.prompt_read_ratio},
            {"prompt_read_by_layer", k.prompt_read_by_layer}}}};
}

ordered_json parts_json(const std::vector<AnswerPart>& parts) {
  constexpr const char* kKinds[] = {"content", "reasoning", "tool_call"};
  ordered_json out = ordered_json::array();
  for (const AnswerPart& p : parts) out.push_back({{"kind", kKinds[size_t(p.kind)]}, {"text", p.text}});
  return out;
}

// templated: the prompt came through the model's chat template.
ordered_json answer_json(const Engine& engine, bool templated, const Request& r, const Answer& a) {
  ordered_json o{{"ids", a.ids}, {"text", a.text}};
  if (templated) o["parts"] = parts_json(engine.answer_parts(a.text));
  o["logprobs"] = r.logprobs >= 0 ? alternatives(a.logprobs, false) : ordered_json();
  o["prompt_logprobs"] = r.prompt_logprobs >= 0 ? alternatives(a.prompt_logprobs, true) : ordered_json();
  o["finish_reason"] = to_string(a.finish);
  o["usage"] = usage_json(a.usage);
  o["timing"] = {{"queue_s", a.timing.queue_s},
                 {"prefill_s", a.timing.prefill_s},
                 {"first_token_s", a.timing.first_token_s},
                 {"decode_s", a.timing.decode_s},
                 {"token_s", a.timing.token_s}};
  return o;
}

Status run(RunFlags& f) {
  SE_ASSIGN(const std::unique_ptr<Engine> engine, f.model.open());
  Request& r = f.request;
  SE_ASSIGN(Talk talk, f.kv.open(*engine, f.plan, f.plan_option->count() > 0));
  SE_ASSIGN(r.ids, f.prompt.read(*engine, talk));
  SE_ASSIGN(r.sampling, f.sampling.read(engine->info()));
  r.plan = talk.plan;
  if (talk.other_plan) r.base = talk.session;
  Out out;
  Progress progress("prompt", "tokens");
  Callbacks calls;
  calls.on_prefill = [&](int64_t done, int64_t total) {
    progress.update(done, total);
    if (done == total) progress.clear();
  };
  if (!f.json && r.n == 1)  // several answers come one after another when all are there
    calls.on_text = [&](const std::string& piece, int) {
      progress.stop();  // the first token comes before the prompt's last report
      out.write(piece);
    };
  const std::vector<int32_t> ids = r.ids;
  const bool turn = talk.session != 0 && !talk.other_plan;
  std::vector<Answer> answers;
  if (turn) {
    if (r.n > 1)
      return invalid("--choices: a conversation goes on in one way (leave --kv-save, --kv-load out)");
    answers.push_back(engine->run_turn(talk.session, std::move(r), std::move(calls)));
  } else {
    answers = engine->run_all(std::move(r), std::move(calls));
  }
  progress.clear();
  for (const Answer& a : answers) {
    if (a.finish == Finish::kError) return a.error;
  }
  if (talk.other_plan && answers[0].usage.cached_tokens == 0)
    std::fprintf(stderr,
                 "sparse-engine: %s computes prompts in another way than %s: all was computed anew\n",
                 talk.plan.c_str(),
                 f.kv.load.c_str());
  if (!talk.messages.empty()) talk.messages.push_back({"assistant", answers[0].text});
  const Status saved = f.kv.store(*engine, talk);  // told after the answer
  if (f.json) {
    ordered_json o{{"prompt_ids", ids}};
    o.update(answer_json(*engine, !talk.messages.empty(), f.request, answers[0]));
    if (answers.size() > 1) {
      o["choices"] = ordered_json::array();
      for (const Answer& a : answers)
        o["choices"].push_back(answer_json(*engine, !talk.messages.empty(), f.request, a));
    }
    out.write(dump(o) + "\n");
    SE_TRY(out.finish());
    return saved;
  }
  for (size_t i = 0; answers.size() > 1 && i < answers.size(); ++i)
    out.write(format("--- {} of {}\n{}\n", i + 1, answers.size(), answers[i].text));
  if (answers.size() == 1) out.write("\n");
  if (::isatty(2)) std::fputs(("\n" + usage_lines(answers[0])).c_str(), stderr);
  SE_TRY(out.finish());
  return saved;
}

}  // namespace

void add_run(CLI::App& app, Status& status) {
  auto f = std::make_shared<RunFlags>();
  CLI::App* c = app.add_subcommand("run", "answer one prompt");
  f->model.add(*c);
  f->sampling.add(*c);
  Request& r = f->request;
  f->prompt.add(*c);
  f->kv.add(*c);
  f->plan_option =
      c->add_option("--plan", f->plan, "KV plan, like snapkv(budget=512)+kivi(bits=4)+quest(budget=256)");
  c->add_option("-n,--max-tokens", r.max_tokens, "most tokens of the answer (default 128)");
  c->add_option("--stop", r.stop, "end the answer at this text (may be repeated)")->take_all();
  c->add_option("--stop-id", r.stop_ids, "end the answer at this token (may be repeated)")->take_all();
  c->add_flag("--include-stop", r.include_stop, "what ended the answer is part of its text");
  c->add_option("--min-tokens", r.min_tokens, "no end before so many tokens");
  c->add_option("--choices", r.n, "answers to draw (they share the prompt's KV)");
  c->add_flag("!--keep-special", r.skip_special, "special tokens of the answer are shown");
  c->add_option(
      "--truncate-prompt", r.truncate_prompt, "keep only the last N prompt tokens; -1: as many as fit");
  c->add_flag("--ignore-eos", r.ignore_eos, "go on after the end token");
  c->add_option("--logprobs", r.logprobs, "alternatives per answer token (JSON)")->check(CLI::Range(0, 1000));
  c->add_option("--prompt-logprobs", r.prompt_logprobs, "alternatives per prompt token (JSON)")
      ->check(CLI::Range(0, 1000));
  c->add_flag("--json", f->json, "one JSON object instead of text");
  c->callback([f, &status] { status = run(*f); });
}

void add_methods(CLI::App& app, Status& status) {
  struct Flags {
    bool matrix = false, json = false;
  };
  auto f = std::make_shared<Flags>();
  CLI::App* c = app.add_subcommand("methods", "the stages a plan can be made of");
  c->add_flag("--matrix", f->matrix, "which pairs of stages compose");
  c->add_flag("--json", f->json, "one JSON object a line");
  c->callback([f, &status] {
    Out out;
    out.write(methods_table(f->matrix, f->json));
    status = out.finish();
  });
}

}  // namespace se::cli
