#include "model/gguf_vocab.h"

#include "base/fmt.h"

namespace se {
namespace {

constexpr const char* kPrefix = "tokenizer.ggml.";

// An id of the vocabulary, or -1 where the file names none.
Status read_id(const Gguf& file, const char* name, int64_t tokens, int32_t& id) {
  const std::string key = kPrefix + std::string(name);
  if (!file.has(key)) return ok();
  SE_ASSIGN(const int64_t found, file.integer(key, -1, INT64_MAX));
  if (found == -1 || found == int64_t(UINT32_MAX)) return ok();  // how some converters write "none"
  if (found >= tokens) {
    return file.bad_value(
        key, format("is {}, expected an id below the {} tokens of the vocabulary", found, tokens));
  }
  id = int32_t(found);
  return ok();
}

Status check_count(const Gguf& file, const std::string& key, size_t found, size_t tokens) {
  if (found == tokens) return ok();
  return file.bad_value(key, format("has {} entries, expected one for each of {} tokens", found, tokens));
}

}  // namespace

Result<text::VocabSpec> read_vocab(const Gguf& file) {
  const auto key = [](const char* name) { return kPrefix + std::string(name); };
  text::VocabSpec vocab;
  SE_ASSIGN(vocab.model, file.string(key("model")));
  SE_ASSIGN(vocab.pre, file.string(key("pre"), "default"));
  SE_ASSIGN(vocab.tokens, file.strings(key("tokens")));
  const size_t tokens = vocab.tokens.size();
  if (tokens == 0 || tokens > size_t(INT32_MAX)) {
    return file.bad_value(key("tokens"), format("has {} entries, expected 1 to {}", tokens, INT32_MAX));
  }
  if (file.has(key("token_type"))) {
    SE_ASSIGN(vocab.types, file.ints(key("token_type")));
    SE_TRY(check_count(file, key("token_type"), vocab.types.size(), tokens));
  }
  if (file.has(key("scores"))) {
    SE_ASSIGN(vocab.scores, file.floats(key("scores")));
    SE_TRY(check_count(file, key("scores"), vocab.scores.size(), tokens));
  }
  if (file.has(key("merges"))) {
    SE_ASSIGN(vocab.merges, file.strings(key("merges")));
  }
  SE_TRY(read_id(file, "bos_token_id", int64_t(tokens), vocab.bos));
  SE_TRY(read_id(file, "eos_token_id", int64_t(tokens), vocab.eos));
  SE_TRY(read_id(file, "eot_token_id", int64_t(tokens), vocab.eot));
  SE_TRY(read_id(file, "eom_token_id", int64_t(tokens), vocab.eom));
  SE_TRY(read_id(file, "unknown_token_id", int64_t(tokens), vocab.unk));
  SE_TRY(read_id(file, "padding_token_id", int64_t(tokens), vocab.pad));
  text::set_implied(vocab);
  SE_ASSIGN(vocab.add_bos, file.boolean(key("add_bos_token"), vocab.add_bos));
  SE_ASSIGN(vocab.add_eos, file.boolean(key("add_eos_token"), false));
  SE_ASSIGN(vocab.add_space_prefix, file.boolean(key("add_space_prefix"), vocab.add_space_prefix));
  return vocab;
}

}  // namespace se
