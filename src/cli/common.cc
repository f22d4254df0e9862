#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/fields.h"
#include "base/fmt.h"
#include "cli/cli.h"

namespace se::cli {

void Out::write(const std::string& text) {
  if (error_ || text.empty()) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    error_ = errno ? errno : EIO;
}

Status Out::finish() {
  if (!error_ && std::fflush(stdout) != 0) error_ = errno ? errno : EIO;
  return error_ ? io_error(format("cannot write to standard output: {}", std::strerror(error_))) : ok();
}

Progress::Progress(std::string label, std::string unit)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      on_(::isatty(2) != 0),
      start_(std::chrono::steady_clock::now()) {}

void Progress::update(int64_t done, int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!on_ || total <= 0 || (shown_ && done < total && now - last_ < std::chrono::milliseconds(100))) return;
  const double spent = std::chrono::duration<double>(now - start_).count();
  const double left = done > 0 ? spent * double(total - done) / double(done) : 0;
  std::string line = format("\r\033[K{} {:3d} %", label_, int(done * 100 / total));
  if (!unit_.empty())
    line += format("  {} of {} {}  {:.0f}/s", done, total, unit_, spent > 0 ? double(done) / spent : 0.0);
  if (spent > 1 && done < total) line += format("  {:.0f} s left", left);
  std::fwrite(line.data(), 1, line.size(), stderr);
  shown_ = true, last_ = now;
}

void Progress::clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

void Progress::stop() {
  clear();
  on_ = false;
}

void ModelFlags::add(CLI::App& app) {
  app.add_option("-m,--model", model, "model file (GGUF)")->required();
  app.add_option("-c,--ctx", context, "most tokens of a sequence (default: the model's, at most 32768)");
  app.add_option("-t,--threads", threads, "threads (default: the physical cores this process may use)");
  app.add_option("--compute", compute, "default, or exact: F32 from dequantised weights, F32 KV")
      ->check(CLI::IsMember({"default", "exact"}));
  app.add_option(
      "--kv-size", kv_size, "bytes of the KV arena, like 512m or 4096m (default: 40 % of free memory)");
}

Result<std::unique_ptr<Engine>> ModelFlags::open() const {
  EngineOptions o;
  o.model = model, o.context = context, o.threads = threads, o.exact = compute == "exact";
  if (context < 0) return invalid(format("--ctx {}: at least 1 token", context));
  if (threads < 0) return invalid(format("--threads {}: at least 1", threads));
  if (!kv_size.empty() && (!parse_integer(kv_size, o.kv_bytes) || o.kv_bytes <= 0))
    return invalid(format("--kv-size {}: expected a number of bytes, like 512m", kv_size));
  Progress progress("loading");
  o.on_load = [&](double done) { progress.update(int64_t(done * 1000), 1000); };
  auto engine = Engine::open(o);
  progress.clear();
  return engine;
}

void SamplingFlags::add(CLI::App& app) {
  app_ = &app;
  app.add_option("--temp",
                 values_.temperature,
                 "temperature; 0: greedy (default: what the model recommends, else greedy)");
  app.add_option("--top-k", values_.top_k, "sample among the k best; 0: off");
  app.add_option("--top-p", values_.top_p, "sample among the fewest tokens of this probability");
  app.add_option(
      "--min-p", values_.min_p, "sample among tokens of at least this share of the best one's probability");
  app.add_option("--seed", values_.seed, "seed of the random numbers");
  app.add_option("--repetition-penalty",
                 values_.repetition_penalty,
                 "over 1: tokens of prompt and answer become less likely; 1: off");
  app.add_option("--frequency-penalty",
                 values_.frequency_penalty,
                 "taken off a token's logit for each time it was answered");
  app.add_option(
      "--presence-penalty", values_.presence_penalty, "taken off a token's logit once it was answered");
  app.add_option("--logit-bias", bias_, "ID=VALUE, added to a token's logit, -100 to 100 (may be repeated)")
      ->take_all();
  app.add_option("--bad-word", values_.bad_words, "text that must not appear in the answer (may be repeated)")
      ->take_all();
  app.add_option("--allowed-ids", values_.allowed_ids, "only these token ids may be answered (a,b,...)")
      ->delimiter(',');
}

Result<Sampling> SamplingFlags::read(const ModelInfo& model) const {
  Sampling s = values_;
  const auto recommend = [&](const char* flag, auto& value, auto recommended) {
    if (app_->count(flag) == 0) value = recommended;
  };
  const Sampling& r = model.recommended;
  recommend("--temp", s.temperature, r.temperature);
  recommend("--top-k", s.top_k, r.top_k);
  recommend("--top-p", s.top_p, r.top_p);
  recommend("--min-p", s.min_p, r.min_p);
  recommend("--repetition-penalty", s.repetition_penalty, r.repetition_penalty);
  for (const std::string& text : bias_) {
    int id = 0, used = 0;
    float value = 0;
    if (std::sscanf(text.c_str(), "%d=%f%n", &id, &value, &used) != 2 || size_t(used) != text.size())
      return invalid(format("--logit-bias {}: expected ID=VALUE, like 13=-100", text));
    s.logit_bias.emplace_back(id, value);
  }
  return s;
}

Result<std::string> read_file(const std::string& path) {
  std::FILE* f = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (!f) return io_error(format("cannot read {}: {}", path, std::strerror(errno)));
  std::string text;
  char block[65536];
  for (size_t n; (n = std::fread(block, 1, sizeof block, f)) > 0;) text.append(block, n);
  const int error = std::ferror(f) ? errno : 0;
  if (f != stdin) std::fclose(f);
  if (error)
    return io_error(
        format("cannot read {}: {}", path == "-" ? "standard input" : path, std::strerror(error)));
  return text;
}

Status write_file(const std::string& path, const std::string& text) {
  std::FILE* f = std::fopen(path.c_str(), "wb");
  if (!f) return io_error(format("cannot write {}: {}", path, std::strerror(errno)));
  const bool written = std::fwrite(text.data(), 1, text.size(), f) == text.size();
  if (std::fclose(f) != 0 || !written)
    return io_error(format("cannot write {}: {}", path, std::strerror(errno)));
  return ok();
}

std::string human_bytes(double bytes) {
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024, unit = next;
  }
  return *unit == 'B' ? format("{:.0f} B", bytes) : format("{:.2f} {}", bytes, unit);
}

std::string usage_lines(const Answer& a) {
  const KvUsage& k = a.usage.kv;
  const double steps = double(a.timing.token_s.size());
  std::string s = format("plan {}\n", k.plan);
  s += format("{} prompt tokens, {} answered ({})\n",
              a.usage.prompt_tokens,
              a.usage.completion_tokens,
              to_string(a.finish));
  s += format("first token after {:.2f} s ({:.0f} prompt tokens/s)",
              a.timing.first_token_s,
              a.timing.prefill_s > 0 ? double(a.usage.prompt_tokens) / a.timing.prefill_s : 0.0);
  if (steps > 0) s += format(", then {:.1f} tokens/s", steps / a.timing.decode_s);
  s += format("\nKV: {:.0f} of {} tokens resident, {} (dense: {}), peak {}",
              k.resident_tokens,
              k.logical_tokens,
              human_bytes(double(k.resident_bytes)),
              human_bytes(double(k.dense_bytes)),
              human_bytes(double(k.peak_bytes)));
  if (steps > 0)
    s += format("; {:.0f} tokens read a step ({:.1f} % of dense)", k.read_tokens, 100 * k.read_ratio);
  if (!k.prompt_read_by_layer.empty()) {
    const auto [least, most] =
        std::minmax_element(k.prompt_read_by_layer.begin(), k.prompt_read_by_layer.end());
    s += format("\nprompt: {:.1f} % of the keys that dense reads ({:.1f} to {:.1f} % by layer)",
                100 * k.prompt_read_ratio,
                100 * *least,
                100 * *most);
  }
  return s + "\n";
}

}  // namespace se::cli
