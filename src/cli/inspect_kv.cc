// sparse-engine inspect kv: what a plan kept of a prompt and what every step read, as data or as one HTML
// page.
#include <CLI/CLI.hpp>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fmt.h"
#include "cli/cli.h"
#include "cli/inspect_page.h"

namespace se::cli {
namespace {

using nlohmann::ordered_json;

struct InspectFlags {
  ModelFlags model;
  PromptFlags prompt;
  std::string plan = "dense", out = "kv.html";
  bool json = false;
  Request request;
};

ordered_json ints(std::span<const int32_t> list) {
  return ordered_json(std::vector<int32_t>(list.begin(), list.end()));
}

// Attention probabilities in hundred-thousandths: what a page can show, at a third of the size.
ordered_json shares(std::span<const float> weights) {
  std::vector<int32_t> out;
  for (float w : weights) out.push_back(int32_t(std::lround(double(w) * 1e5)));
  return ordered_json(out);
}

// The tokens one by one, as text; bytes of a character that is cut in two become U+FFFD.
ordered_json texts(const Engine& engine, std::span<const int32_t> ids) {
  ordered_json out = ordered_json::array();
  for (int32_t id : ids) out.push_back(engine.detokenize(std::span(&id, 1), false));
  return out;
}

Status inspect(InspectFlags& f) {
  SE_ASSIGN(const std::unique_ptr<Engine> engine, f.model.open());
  Request& r = f.request;
  SE_ASSIGN(r.ids, f.prompt.read(*engine));
  r.plan = f.plan, r.trace = r.trace_weights = true;
  const int64_t prompt = int64_t(r.ids.size());
  std::vector<int32_t> ids = r.ids;
  std::map<int, ordered_json> kept;
  std::map<int64_t, std::map<int, std::pair<ordered_json, ordered_json>>> read;
  Progress progress("prompt", "tokens");
  Callbacks calls;
  calls.on_prefill = [&](int64_t done, int64_t total) { progress.update(done, total); };
  calls.on_kept = [&](int layer, std::span<const int32_t> positions) { kept[layer] = ints(positions); };
  calls.on_read = [&](const ReadTrace& t, int) {
    read[t.step][t.layer] = {ints(t.positions), shares(t.weights)};
  };
  const Answer a = engine->run(std::move(r), std::move(calls));
  progress.clear();
  if (a.finish == Finish::kError) return a.error;
  ids.insert(ids.end(), a.ids.begin(), a.ids.end());

  ordered_json o{{"model", engine->info().name},
                 {"plan", a.usage.kv.plan},
                 {"layers", engine->info().layers},
                 {"prompt_tokens", prompt},
                 {"ids", ids},
                 {"tokens", texts(*engine, ids)}};
  o["kv"] = {{"resident_bytes", a.usage.kv.resident_bytes},
             {"dense_bytes", a.usage.kv.dense_bytes},
             {"read_tokens", a.usage.kv.read_tokens},
             {"read_ratio", a.usage.kv.read_ratio},
             {"prompt_read_ratio", a.usage.kv.prompt_read_ratio},
             {"prompt_read_by_layer", a.usage.kv.prompt_read_by_layer}};
  o["kept"] = ordered_json::array();
  for (auto& [layer, list] : kept) o["kept"].push_back({{"layer", layer}, {"positions", std::move(list)}});
  o["steps"] = ordered_json::array();
  for (auto& [step, layers] : read) {
    ordered_json s{{"token", prompt + step}, {"layers", ordered_json::array()}};
    for (auto& [layer, lists] : layers)
      s["layers"].push_back(
          {{"layer", layer}, {"positions", std::move(lists.first)}, {"weights", std::move(lists.second)}});
    o["steps"].push_back(std::move(s));
  }
  const std::string data = o.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  Out out;
  if (f.json) {
    out.write(data + "\n");
    return out.finish();
  }
  SE_TRY(write_file(f.out, inspect_page(data)));
  out.write(format("{}: {} tokens, {} of them the prompt, {} steps; open it in a browser\n",
                   f.out,
                   ids.size(),
                   prompt,
                   read.size()));
  return out.finish();
}

void add_inspect_kv(CLI::App& app, Status& status) {
  auto f = std::make_shared<InspectFlags>();
  CLI::App* c =
      app.add_subcommand("kv", "which tokens of a prompt each layer keeps, and what each step reads");
  f->model.add(*c);
  f->prompt.add(*c);
  f->request.max_tokens = 16;
  c->add_option("--plan", f->plan, "KV plan");
  c->add_option("-n,--max-tokens", f->request.max_tokens, "most tokens of the answer (default 16)");
  c->add_flag("--ignore-eos", f->request.ignore_eos, "go on after the end token");
  CLI::Option* out = c->add_option("-o,--out", f->out, "the page (default kv.html)");
  c->add_flag("--json", f->json, "the same as data, on standard output; weights in hundred-thousandths")
      ->excludes(out);
  c->callback([f, &status] { status = inspect(*f); });
}

}  // namespace

void add_inspect(CLI::App& app, Status& status) {
  CLI::App* c = app.add_subcommand("inspect", "look inside: model, kv");
  c->require_subcommand(1);
  add_inspect_model(*c, status);
  add_inspect_kv(*c, status);
}

}  // namespace se::cli
