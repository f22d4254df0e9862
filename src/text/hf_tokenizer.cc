#include "text/hf_tokenizer.h"

#include <algorithm>
#include <unordered_set>

#include "base/fmt.h"
#include "base/quoted.h"
#include "text/char_bpe.h"

namespace se::text {
namespace {

// Some released files lack "type": only BPE has merges.
Status check_model(const HfJson& model) {
  const std::string type = model.value("type", model.contains("merges") ? "BPE" : "none");
  if (type != "BPE") return unsupported(format("model: the type is {}, supported: BPE", se::quoted(type)));
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const HfJson value = model.value(key, HfJson());
    const bool off = value.is_null() || value == "" || (value.is_number() && value == 0);
    if (!off) return unsupported(format("model: {} is {}, supported: none", key, value.dump()));
  }
  return ok();
}

// Ids are dense but for a few gaps; a huge one would be a table of nothing.
Status check_id(int64_t id, size_t tokens, const std::string& token) {
  if (id >= 0 && id < int64_t(2 * tokens + 1024)) return ok();
  return invalid(format("model: {} has the id {}, there are only {} tokens", se::quoted(token), id, tokens));
}

Status read_tokens(const HfJson& vocab, const HfJson& added, VocabSpec& spec) {
  const size_t count = vocab.size() + added.size();
  size_t size = 0;
  const auto grow = [&](int64_t id, const std::string& token) -> Status {
    SE_TRY(check_id(id, count, token));
    size = std::max(size, size_t(id) + 1);
    return ok();
  };
  for (const auto& [token, id] : vocab.items()) SE_TRY(grow(whole_number(id), token));
  for (const HfJson& entry : added) SE_TRY(grow(whole_number(entry.at("id")), entry.at("content")));
  spec.tokens.resize(size);
  spec.types.assign(size, int32_t(TokenType::kUnused));
  for (const auto& [token, id] : vocab.items()) {
    const size_t at = size_t(whole_number(id));
    if (spec.types[at] != int32_t(TokenType::kUnused)) {
      return invalid(
          format("model: {} and {} have the same id {}", se::quoted(spec.tokens[at]), se::quoted(token), at));
    }
    spec.tokens[at] = token;
    spec.types[at] = int32_t(TokenType::kNormal);
  }
  for (size_t id = 0; id < size; ++id) {
    if (spec.types[id] == int32_t(TokenType::kUnused)) spec.tokens[id] = format("[PAD{}]", id);
  }
  return ok();
}

Status read_added(const HfJson& vocab, const HfJson& added, VocabSpec& spec) {
  std::unordered_set<int32_t> seen;
  for (const HfJson& entry : added) {
    const int32_t id = int32_t(whole_number(entry.at("id")));
    const std::string content = entry.at("content");
    const auto known = vocab.find(content);
    const bool taken =
        spec.types[size_t(id)] == int32_t(TokenType::kNormal) && spec.tokens[size_t(id)] != content;
    if (taken || (known != vocab.end() && whole_number(*known) != id) || !seen.insert(id).second) {
      return invalid(format(
          "added_tokens: {} has the id {}, which the vocabulary contradicts", se::quoted(content), id));
    }
    const bool special = entry.value("special", false);
    spec.tokens[size_t(id)] = content;
    spec.types[size_t(id)] = int32_t(special ? TokenType::kControl : TokenType::kUserDefined);
    const MatchRule rule = {id,
                            entry.value("lstrip", false),
                            entry.value("rstrip", false),
                            entry.value("single_word", false),
                            entry.value("normalized", false)};
    if (rule.lstrip || rule.rstrip || rule.single_word || rule.normalized) spec.rules.push_back(rule);
  }
  return ok();
}

// "a b" or ["a", "b"].
Status read_merges(const HfJson& merges, VocabSpec& spec) {
  std::unordered_set<std::string_view> special;  // which no merge may make of text
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const TokenType type = TokenType(spec.types[id]);
    if (type == TokenType::kControl || type == TokenType::kByte) special.insert(spec.tokens[id]);
  }
  spec.merges.reserve(merges.size());
  for (const HfJson& merge : merges) {
    std::string line;
    if (merge.is_array()) {
      const std::string left = merge.at(0), right = merge.at(1);
      if (merge.size() != 2 || left.find(' ') != left.npos || right.find(' ') != right.npos) {
        return unsupported(format(
            "model: merge {} is {}, wanted two tokens without spaces", spec.merges.size(), merge.dump()));
      }
      line = left + " " + right;
    } else {
      line = merge.get<std::string>();
    }
    const size_t space = std::min(line.find(' ', 1), line.size());
    std::string whole = line;
    if (space < line.size()) whole.erase(space, 1);
    if (spec.model != "gpt2" && special.contains(whole)) continue;
    spec.merges.push_back(std::move(line));
  }
  return ok();
}

Status mark_byte_tokens(VocabSpec& spec) {
  int found = 0;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (spec.types[id] == int32_t(TokenType::kUnused) || byte_of_token(spec.tokens[id]) < 0) continue;
    spec.types[id] = int32_t(TokenType::kByte);
    ++found;
  }
  if (found == 256) return ok();
  return unsupported(format("model: byte_fallback with {} tokens <0xHH>, supported: all 256", found));
}

}  // namespace

Result<VocabSpec> read_tokenizer_json(const HfJson& json) {
  const HfJson& model = json.at("model");
  SE_TRY(check_model(model));
  const HfJson& vocab = model.at("vocab");
  const HfJson added = json.value("added_tokens", HfJson::array());
  if (!vocab.is_object()) return invalid("model: vocab is no object");
  VocabSpec spec;
  const bool byte_fallback = model.value("byte_fallback", false);
  SE_TRY(read_pipeline(json, byte_fallback, spec));
  spec.ignore_merges = model.value("ignore_merges", false);
  if (spec.ignore_merges && byte_fallback) return unsupported("model: ignore_merges with byte_fallback");
  SE_TRY(read_tokens(vocab, added, spec));
  SE_TRY(read_added(vocab, added, spec));
  if (byte_fallback) SE_TRY(mark_byte_tokens(spec));
  SE_TRY(read_merges(model.at("merges"), spec));
  if (const HfJson unk = model.value("unk_token", HfJson()); unk.is_string()) {
    const auto found = vocab.find(unk.get<std::string>());
    if (found == vocab.end()) return invalid(format("model: unk_token {} is no token", unk.dump()));
    spec.unk = int32_t(whole_number(*found));
  }
  SE_TRY(read_post_processor(json.value("post_processor", HfJson()), spec));
  return spec;
}

}  // namespace se::text
