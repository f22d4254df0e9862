// sparse-engine eval: what plans cost in quality, beside dense in the same run.
#include "eval/eval.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "base/fmt.h"
#include "cli/cli.h"

namespace se::cli {
namespace {

struct EvalFlags {
  ModelFlags model;
  std::vector<std::string> suites{"needle", "multikey", "vartrack"};
  std::string text;
  eval::EvalOptions options;
};

Status run_eval(EvalFlags& f) {
  eval::EvalOptions& o = f.options;
  for (const std::string& name : f.suites) {
    SE_ASSIGN(const eval::Suite suite, eval::parse_suite(name));
    o.suites.push_back(suite);
  }
  if (!f.text.empty()) {
    SE_ASSIGN(o.text, read_file(f.text));
    if (o.text.empty()) return invalid(format("{} is empty", f.text));
  }
  SE_ASSIGN(const std::unique_ptr<Engine> engine, f.model.open());
  Progress progress("eval", "answers");
  o.progress = [&](int64_t done, int64_t total) { progress.update(done, total); };
  const Result<std::vector<eval::Record>> records = eval::evaluate(*engine, o);
  progress.clear();
  if (!records.ok()) return records.status();
  std::vector<std::string> plans{"dense"};
  for (const std::string& text : o.plans) {
    SE_ASSIGN(const PlanPrice price, engine->price(text, 1, 1));
    if (price.plan != "dense") plans.push_back(price.plan);
  }
  const std::vector<eval::Summary> summaries = eval::summarise(*records, plans);
  const std::string table = eval::table(summaries);
  SE_TRY(write_file(o.folder + "/summary.md", table));
  SE_TRY(write_file(o.folder + "/quality.svg", eval::quality_map(summaries)));
  if (const std::string map = eval::needle_map(*records, plans); !map.empty())
    SE_TRY(write_file(o.folder + "/needle.svg", map));
  Out out;
  out.write(format("{}, prompts of up to {} tokens, {} samples; every answer is in {}/samples.jsonl\n\n{}",
                   engine->info().name,
                   *std::max_element(o.lengths.begin(), o.lengths.end()),
                   o.samples,
                   o.folder,
                   table));
  return out.finish();
}

}  // namespace

void add_eval(CLI::App& app, Status& status) {
  auto f = std::make_shared<EvalFlags>();
  CLI::App* c = app.add_subcommand("eval", "quality of plans beside dense; goes on where a stopped run was");
  f->model.add(*c);
  eval::EvalOptions& o = f->options;
  o.folder = "eval";
  c->add_option("--suite",
                f->suites,
                "ppl, kld, recall, needle, multikey, vartrack (a,b,...; default: the last three)")
      ->delimiter(',');
  c->add_option("--plan", o.plans, "KV plan (may be repeated); dense runs in any case")->take_all();
  c->add_option("--length", o.lengths, "prompt tokens (a,b,...; default 2048)")->delimiter(',');
  c->add_option("--text-length", o.text_length, "prompt tokens of ppl, kld, recall (default: --length)");
  c->add_option("--samples", o.samples, "of each suite and length; needle: one for each depth (default 10)");
  c->add_option(
      "--continue", o.continue_by, "ppl, kld, recall: tokens compared after the prompt (default 64)");
  c->add_option(
      "--text", f->text, "text to hide facts in and to predict (default: made-up sentences, no ppl and kld)");
  c->add_option("--seed", o.seed, "of facts, names and places (default 1)");
  c->add_option("-o,--out", o.folder, "folder of samples.jsonl, summary.md and the pictures (default: eval)");
  c->callback([f, &status] { status = run_eval(*f); });
}

}  // namespace se::cli
