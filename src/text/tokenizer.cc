#include "text/tokenizer.h"

#include "base/check.h"
#include "base/fmt.h"
#include "text/unicode.h"

namespace se::text {
namespace {

constexpr std::string_view kModel = "gpt2";

TokenType type_of(const VocabSpec& spec, size_t id) {
  return spec.types.empty() ? TokenType::kNormal : TokenType(spec.types[id]);
}

Status check_id(const char* name, int32_t id, size_t tokens) {
  if (id >= -1 && id < int64_t(tokens)) return ok();
  return invalid(format("{} token id is {}, the vocabulary has ids 0 to {}", name, id, int64_t(tokens) - 1));
}

Status check(const VocabSpec& spec) {
  if (spec.model != kModel) {
    return unsupported(format("tokenizer model is '{}', supported: {}", spec.model, kModel));
  }
  if (find_pretokenizer(spec.pre) == nullptr) {
    return unsupported(format("pre-tokenizer is '{}', supported: {}", spec.pre, pretokenizer_names()));
  }
  const size_t tokens = spec.tokens.size();
  if (tokens == 0) return invalid("the vocabulary has no tokens");
  if (!spec.types.empty() && spec.types.size() != tokens) {
    return invalid(format("the vocabulary has {} tokens but {} token types", tokens, spec.types.size()));
  }
  SE_TRY(check_id("bos", spec.bos, tokens));
  SE_TRY(check_id("eos", spec.eos, tokens));
  SE_TRY(check_id("eot", spec.eot, tokens));
  SE_TRY(check_id("eom", spec.eom, tokens));
  SE_TRY(check_id("unknown", spec.unk, tokens));
  SE_TRY(check_id("padding", spec.pad, tokens));
  if (spec.add_bos && spec.bos < 0) return invalid("the vocabulary adds BOS but names no BOS token");
  if (spec.add_eos && spec.eos < 0) return invalid("the vocabulary adds EOS but names no EOS token");
  return ok();
}

}  // namespace

Result<Tokenizer> Tokenizer::create(VocabSpec spec) {
  SE_TRY(check(spec));
  auto data = std::make_unique<Data>();
  data->spec = std::move(spec);
  const VocabSpec& vocab = data->spec;
  const size_t tokens = vocab.tokens.size();
  data->ids.reserve(tokens);
  data->bytes.reserve(tokens);
  for (size_t id = 0; id < tokens; ++id) {
    const std::string& token = vocab.tokens[id];
    const TokenType type = type_of(vocab, id);
    const bool control = type == TokenType::kControl || type == TokenType::kUnknown;
    const bool verbatim = control || type == TokenType::kUserDefined;
    data->ids.try_emplace(token, int32_t(id));
    data->bytes.push_back(verbatim ? token : token_to_bytes(token));
    if (verbatim) data->special.add(token, int32_t(id), control);
  }
  SE_ASSIGN(data->bpe, Bpe::create(data->ids, vocab.merges));
  data->split = find_pretokenizer(vocab.pre);
  return Tokenizer(std::move(data));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  return encode_with_plain(text, {}, options);
}

std::vector<int32_t> Tokenizer::encode_with_plain(std::string_view text,
                                                  const std::vector<Span>& plain,
                                                  EncodeOptions options) const {
  std::vector<int32_t> ids;
  Pieces pieces;
  const VocabSpec& vocab = data_->spec;
  if (options.add_special && vocab.add_bos) ids.push_back(vocab.bos);
  for (size_t at = 0; at < text.size();) {
    const TokenMatch match = data_->special.find(text, at, options.parse_special, plain);
    encode_plain(text.substr(at, match.begin == text.npos ? text.npos : match.begin - at), pieces, ids);
    if (match.begin == text.npos) break;
    ids.push_back(match.id);
    at = match.begin + match.size;
  }
  if (options.add_special && vocab.add_eos) ids.push_back(vocab.eos);
  return ids;
}

void Tokenizer::encode_plain(std::string_view text, Pieces& pieces, std::vector<int32_t>& out) const {
  pieces.clear();
  data_->split(text, pieces);
  for (const std::string_view piece : pieces) data_->bpe.encode(piece, out);
}

std::string Tokenizer::decode_bytes(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special || !is_special(id)) bytes += token_bytes(id);
  }
  return bytes;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  return to_valid_utf8(decode_bytes(ids, skip_special));
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return id < 0 || id >= size() ? std::string_view() : data_->bytes[id];
}

std::string_view Tokenizer::token_text(int32_t id) const {
  return id < 0 || id >= size() ? std::string_view() : data_->spec.tokens[id];
}

int32_t Tokenizer::find(std::string_view token) const {
  const auto found = data_->ids.find(token);
  return found == data_->ids.end() ? -1 : found->second;
}

bool Tokenizer::is_special(int32_t id) const {
  if (id < 0 || id >= size()) return false;
  const TokenType type = type_of(data_->spec, id);
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

bool Tokenizer::ends_generation(int32_t id) const {
  const VocabSpec& vocab = data_->spec;
  return id >= 0 && (id == vocab.eos || id == vocab.eot || id == vocab.eom);
}

}  // namespace se::text
