// sparse-engine bench: llama-bench's table, and one JSON object a line; bytes are counted by the store.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fmt.h"
#include "cli/cli.h"

namespace se::cli {
namespace {

struct BenchFlags {
  ModelFlags model;
  std::vector<int64_t> prompts{512}, decodes{64}, depths{0};
  std::vector<int> batches{1};
  std::vector<std::string> plans{"dense"};
  int repeats = 5;
  std::string fill = "prefill";
  KvFiles kv;
  bool in_turn = false, explain = false, json = false;
};

double percentile(std::vector<double> v, double p) {
  std::sort(v.begin(), v.end());
  const double at = p * double(v.size() - 1);
  const size_t i = size_t(at);
  return i + 1 < v.size() ? v[i] + (at - double(i)) * (v[i + 1] - v[i]) : v.back();
}

struct Row {
  Engine::BenchCase c;
  Engine::BenchResult r;  // of the last repeat
  std::vector<double> tok_per_s;
  std::vector<double> over_depth_0;  // of all repeats
};

Result<Row> measure(Engine& engine, const Engine::BenchCase& c, int repeats) {
  Row row;
  row.c = c;
  for (int i = 0; i < repeats; ++i) {
    SE_ASSIGN(row.r, engine.bench(c));
    row.tok_per_s.push_back(double(std::max(c.prompt, c.decode)) * c.batch / row.r.total_s);
    row.over_depth_0.insert(row.over_depth_0.end(), row.r.over_depth_0.begin(), row.r.over_depth_0.end());
  }
  return row;
}

std::string json_line(const Engine& engine, const Row& w, bool explain) {
  const bool prompt = w.c.prompt > 0;
  nlohmann::ordered_json o{{"test", prompt ? "pp" : "tg"},
                           {"n", prompt ? w.c.prompt : w.c.decode},
                           {"depth", w.c.depth},
                           {"batch", w.c.batch},
                           {"plan", w.r.price.plan},
                           {"threads", engine.info().threads},
                           {"isa", engine.info().isa},
                           {"tok_per_s", percentile(w.tok_per_s, 0.5)},
                           {"p10", percentile(w.tok_per_s, 0.1)},
                           {"p90", percentile(w.tok_per_s, 0.9)},
                           {"kv_bytes", w.r.kv_bytes},
                           {"peak_kv_bytes", w.r.peak_kv_bytes},
                           {"resident_tokens", w.r.resident_tokens},
                           {"read_tokens", w.r.read_tokens},
                           {"prompt_read_ratio", w.r.prompt_read_ratio}};
  if (!w.over_depth_0.empty())
    o["step_over_depth_0"] = {{"median", percentile(w.over_depth_0, 0.5)},
                              {"p10", percentile(w.over_depth_0, 0.1)},
                              {"p90", percentile(w.over_depth_0, 0.9)},
                              {"turns", w.over_depth_0.size()}};
  if (explain) {
    const PlanPrice& p = w.r.price;
    o["explain"] = {{"resident_bytes", p.resident_bytes * w.c.batch},
                    {"peak_bytes", p.peak_bytes * w.c.batch},
                    {"transient_bytes", p.transient_bytes},
                    {"read_bytes", p.read_bytes},
                    {"dense_bytes", p.dense_bytes * w.c.batch},
                    {"resident_tokens", p.resident_tokens},
                    {"read_tokens", p.read_tokens}};
  }
  return o.dump() + "\n";
}

std::string explain_lines(const Engine& engine, const Row& w) {
  const PlanPrice& p = w.r.price;
  const auto line = [](const char* what, int64_t priced, int64_t counted) {
    return format(
        "    {:<10} priced {:>13}  counted {:>13}  {}\n",
        what,
        priced,
        counted,
        priced == counted ? "equal" : format("{:+.2f} %", 100.0 * double(counted - priced) / double(priced)));
  };
  std::string s = line("resident", p.resident_bytes * w.c.batch, w.r.kv_bytes);
  s += line("peak", p.peak_bytes * w.c.batch, w.r.peak_kv_bytes);
  s += format("    transient  {} of the peak; dense keeps {}; the last step reads {} at most\n",
              human_bytes(double(p.transient_bytes)),
              human_bytes(double(p.dense_bytes * w.c.batch)),
              human_bytes(double(p.read_bytes)));
  if (w.r.prompt_read_ratio != 1)
    s += format("    prompts    read {:.1f} % of the keys that dense's tiles read\n",
                100 * w.r.prompt_read_ratio);
  if (const auto& i = engine.info(); i.full_layers < i.layers)
    s += format("    layers     keepers and readers act on {} of {}, the others have windows\n",
                i.full_layers,
                i.layers);
  return s;
}

Status check(const BenchFlags& f) {
  const auto none_below = [](const char* flag, const std::vector<int64_t>& values) {
    for (int64_t v : values) {
      if (v < 0) return invalid(format("{} {}: at least 0", flag, v));
    }
    return ok();
  };
  SE_TRY(none_below("-p", f.prompts));
  SE_TRY(none_below("-n", f.decodes));
  SE_TRY(none_below("-d", f.depths));
  const auto some = [](const std::vector<int64_t>& values) {
    return std::any_of(values.begin(), values.end(), [](int64_t v) { return v > 0; });
  };
  if (!f.kv.save.empty() &&
      (f.plans.size() > 1 || f.depths.size() > 1 || f.depths[0] == 0 || f.fill != "prefill"))
    return invalid("--kv-save: wanted one --plan and one depth (-d) that is prefilled");
  if (!f.kv.load.empty() && (f.depths.size() > 1 || f.depths[0] == 0))
    return invalid("--kv-load: wanted the one depth (-d) that the file holds");
  if (!f.kv.load.empty() && (f.explain || !f.kv.save.empty()))
    return invalid("--kv-load: nothing is computed that --explain could price or --kv-save could keep");
  if (f.in_turn && (some(f.prompts) || f.explain || std::count(f.depths.begin(), f.depths.end(), 0) > 0))
    return invalid("--in-turn: wanted -p 0, depths (-d) over 0 and no --explain (two rows share the bytes)");
  if (!some(f.prompts) && !some(f.decodes)) return invalid("nothing to measure: -p and -n are both 0");
  return ok();
}

Status bench(const BenchFlags& f) {
  SE_TRY(check(f));
  if (f.repeats < 1) return invalid(format("-r {}: at least 1", f.repeats));
  SE_ASSIGN(const std::unique_ptr<Engine> engine, f.model.open());
  const ModelInfo& info = engine->info();
  uint64_t from = 0;
  if (!f.kv.load.empty()) {
    SE_ASSIGN(const Engine::SavedSession saved, engine->load_session(f.kv.load));
    if (saved.tokens != f.depths[0])
      return invalid(format("{}: holds {} tokens, the depth is {}", f.kv.load, saved.tokens, f.depths[0]));
    from = saved.session;
  }
  Out out;
  if (!f.json) {
    out.write(format("{}: {:.2f} M parameters, {}, {}; {} threads, {}\n\n",
                     info.name,
                     double(info.parameters) / 1e6,
                     human_bytes(double(info.weight_bytes)),
                     info.weight_types,
                     info.threads,
                     info.isa));
    out.write(format("| {:<48} | {:>5} | {:>14} | {:>18} | {:>11} | {:>11} | {:>8} | {:>8} |\n",
                     "plan",
                     "batch",
                     "test",
                     "tokens/s",
                     "KV bytes",
                     "peak bytes",
                     "resident",
                     "read"));
    out.write("|:" + std::string(48, '-') +
              "-|------:|---------------:|-------------------:|------------:|------------:|---------:|-------"
              "--:|\n");
  }
  for (const std::string& plan : f.plans) {
    for (int64_t depth : f.depths) {
      for (int batch : f.batches) {
        std::vector<Engine::BenchCase> cases;
        for (int64_t p : f.prompts) {
          if (p > 0) cases.push_back({plan, p, 0, depth, batch, f.fill == "synthetic", f.kv.save, from});
        }
        for (int64_t n : f.decodes) {
          if (n > 0)
            cases.push_back({plan, 0, n, depth, batch, f.fill == "synthetic", f.kv.save, from, f.in_turn});
        }
        for (const Engine::BenchCase& c : cases) {
          auto measured = measure(*engine, c, f.repeats);
          if (!measured.ok()) return from != 0 ? measured.status().in(f.kv.load) : measured.status();
          const Row w = measured.take();
          if (f.json) {
            out.write(json_line(*engine, w, f.explain));
            continue;
          }
          const double mid = percentile(w.tok_per_s, 0.5);
          const double spread = (percentile(w.tok_per_s, 0.9) - percentile(w.tok_per_s, 0.1)) / 2;
          std::string test = format("{}{}", c.prompt > 0 ? "pp" : "tg", std::max(c.prompt, c.decode));
          if (depth > 0) test += format(" @ d{}", depth);
          out.write(format(
              "| {:<48} | {:>5} | {:>14} | {:>10.2f} ± {:>5.2f} | {:>11} | {:>11} | {:>8.0f} | {:>8.0f} |\n",
              w.r.price.plan,
              batch,
              test,
              mid,
              spread,
              w.r.kv_bytes,
              w.r.peak_kv_bytes,
              w.r.resident_tokens,
              w.r.read_tokens));
          if (!w.over_depth_0.empty())
            out.write(format(
                "    in turn    a step takes {:.2f} ({:.2f} to {:.2f}) of one from depth 0; {} turns\n",
                percentile(w.over_depth_0, 0.5),
                percentile(w.over_depth_0, 0.1),
                percentile(w.over_depth_0, 0.9),
                w.over_depth_0.size()));
          if (f.explain) out.write(explain_lines(*engine, w));
        }
      }
    }
  }
  return out.finish();
}

}  // namespace

void add_bench(CLI::App& app, Status& status) {
  auto f = std::make_shared<BenchFlags>();
  CLI::App* c = app.add_subcommand("bench", "speed and bytes at chosen depths and batches");
  f->model.add(*c);
  f->kv.add(*c);
  c->add_option("-p,--prompt-tokens", f->prompts, "prompt lengths to time; 0: none (default 512)")
      ->delimiter(',');
  c->add_option("-n,--decode-tokens", f->decodes, "decode steps to time; 0: none (default 64)")
      ->delimiter(',');
  c->add_option("-d,--depth", f->depths, "tokens that are there before")->delimiter(',');
  c->add_option("-b,--batch", f->batches, "sequences decoding together")->delimiter(',');
  c->add_option("--plan", f->plans, "KV plan (may be repeated)")->take_all();
  c->add_option("-r,--repeats", f->repeats, "repeats (default 5): median, 10th and 90th percentile");
  c->add_option("--fill", f->fill, "how the depth is made: prefill, or synthetic (random K and V, no model)")
      ->check(CLI::IsMember({"prefill", "synthetic"}));
  c->add_flag(
      "--in-turn", f->in_turn, "decode nine steps at the depth, nine from depth 0, and so on: their ratio");
  c->add_flag("--explain", f->explain, "what was priced before running beside what was counted");
  c->add_flag("--json", f->json, "one JSON object a line");
  c->callback([f, &status] { status = bench(*f); });
}

}  // namespace se::cli
