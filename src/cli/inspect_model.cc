// sparse-engine inspect model.
#include <CLI/CLI.hpp>
#include <memory>

#include "base/fields.h"
#include "base/fmt.h"
#include "cli/cli.h"
#include "sparseengine/inspect.h"

namespace se::cli {
namespace {

struct ModelOptions {
  InspectModelOptions inspect;
  std::vector<std::string> contexts;
};

Status inspect(ModelOptions& o) {
  for (const std::string& text : o.contexts) {
    int64_t tokens = 0;
    if (!parse_integer(text, tokens) || tokens < 1)
      return invalid(format("--ctx {}: expected a number of tokens, like 4096 or 32k", text));
    o.inspect.contexts.push_back(tokens);
  }
  SE_ASSIGN(const std::string report, inspect_model(o.inspect));
  Out out;
  out.write(report);
  return out.finish();
}

}  // namespace

void add_inspect_model(CLI::App& app, Status& status) {
  auto o = std::make_shared<ModelOptions>();
  CLI::App* c =
      app.add_subcommand("model", "what a model file holds: shapes, types, tokenizer, memory under plans");
  c->add_option("path", o->inspect.model, "GGUF file or Hugging Face folder")->required();
  c->add_option(
       "-c,--ctx", o->contexts, "tokens to price, like 4096,32k (default: 4096 and the trained context)")
      ->delimiter(',');
  // One plan an option: plans have commas of their own.
  c->add_option("--plan", o->inspect.plans, "plan to price; may be repeated (default: dense)")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  c->add_flag("--tensors", o->inspect.tensors, "list every tensor");
  c->add_flag("--json", o->inspect.json, "one JSON object");
  c->callback([o, &status] { status = inspect(*o); });
}

}  // namespace se::cli
