// sparse-engine tokenize: text to token ids and back. Needs no weights.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fmt.h"
#include "cli/cli.h"
#include "sparseengine/vocabulary.h"

namespace se::cli {

Result<std::vector<int32_t>> read_ids(const std::string& path) {
  SE_ASSIGN(const std::string text, read_file(path));
  std::vector<int32_t> ids;
  const char *at = text.data(), *end = at + text.size();
  while (at != end) {
    if (std::isspace(static_cast<unsigned char>(*at))) {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (next != end && !std::isspace(static_cast<unsigned char>(*next))))
      return invalid(format("{}: expected decimal token ids separated by white space, found '{}' at byte {}",
                            path,
                            std::string(at, std::min<size_t>(size_t(end - at), 12)),
                            at - text.data()));
    ids.push_back(id);
    at = next;
  }
  return ids;
}

namespace {

struct TokenizeFlags {
  std::string model;
  bool no_special = false, json = false, decode = false;
};

Status decode(const TokenizeFlags& f, const Vocabulary& vocabulary) {
  SE_ASSIGN(const std::vector<int32_t> ids, read_ids("-"));
  SE_ASSIGN(const std::string text, vocabulary.detokenize(ids, f.no_special));
  Out out;
  out.write(f.json ? nlohmann::ordered_json{{"text", text}}.dump() + "\n" : text);
  return out.finish();
}

Status tokenize(const TokenizeFlags& f) {
  SE_ASSIGN(const std::unique_ptr<Vocabulary> vocabulary, Vocabulary::open(f.model));
  if (f.decode) return decode(f, *vocabulary);
  SE_ASSIGN(const std::string text, read_file("-"));
  const std::vector<int32_t> ids = vocabulary->tokenize(text, !f.no_special, true);
  std::string line = f.json ? nlohmann::ordered_json{{"ids", ids}}.dump() : "";
  for (size_t i = 0; !f.json && i < ids.size(); ++i) line += format("{} ", ids[i]);
  Out out;
  out.write(line + "\n");
  return out.finish();
}

}  // namespace

void add_tokenize(CLI::App& app, Status& status) {
  auto f = std::make_shared<TokenizeFlags>();
  CLI::App* c = app.add_subcommand("tokenize", "text on standard input to token ids, or back");
  c->add_option("-m,--model", f->model, "model: a GGUF file, or a folder with tokenizer.json")->required();
  c->add_flag("--no-special", f->no_special, "add no BOS or EOS; with --decode: leave special tokens out");
  c->add_flag("--decode", f->decode, "token ids on standard input to text");
  c->add_flag("--json", f->json, "{\"ids\": [...]} or {\"text\": ...}");
  c->callback([f, &status] { status = tokenize(*f); });
}

}  // namespace se::cli
