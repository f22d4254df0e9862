#include "text/tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "base/fmt.h"
#include "base/quoted.h"
#include "text/unicode.h"

namespace se::text {
namespace {

TokenType type_of(const VocabSpec& spec, size_t id) {
  return spec.types.empty() ? TokenType::kNormal : TokenType(spec.types[id]);
}

Status check_id(const char* name, int32_t id, size_t tokens) {
  if (id >= -1 && id < int64_t(tokens)) return ok();
  return invalid(format("{} token id is {}, the vocabulary has ids 0 to {}", name, id, int64_t(tokens) - 1));
}

Status check(const VocabSpec& spec) {
  if (spec.model != "gpt2" && spec.model != "llama" && spec.model != "char-bpe") {
    return unsupported(
        format("tokenizer model is {}, supported: gpt2, llama, char-bpe", se::quoted(spec.model)));
  }
  if (spec.model == "gpt2" && find_pretokenizer(spec.pre) == nullptr) {
    return unsupported(
        format("pre-tokenizer is {}, supported: {}", se::quoted(spec.pre), pretokenizer_names()));
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
  for (const MatchRule& rule : spec.rules) SE_TRY(check_id("matched", rule.id, tokens));
  if (spec.add_bos && spec.bos < 0) return invalid("the vocabulary adds BOS but names no BOS token");
  if (spec.add_eos && spec.eos < 0) return invalid("the vocabulary adds EOS but names no EOS token");
  return ok();
}

void append_marked_spaces(std::string_view text, std::string& out) {
  for (size_t at = 0; at < text.size();) {
    const size_t space = std::min(text.find(' ', at), text.size());
    out += text.substr(at, space - at);
    if (space < text.size()) out += kSpaceMark;
    at = space + 1;
  }
}

std::string marked_spaces(std::string_view text) {
  std::string out;
  append_marked_spaces(text, out);
  return out;
}

// What a token of characters stands for: kSpaceMark is a space, "<0x0A>" a byte.
std::string char_token_bytes(std::string_view token, TokenType type) {
  const int byte = type == TokenType::kByte ? byte_of_token(token) : -1;
  if (byte >= 0) return std::string(1, char(byte));
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const size_t mark = std::min(token.find(kSpaceMark, at), token.size());
    bytes += token.substr(at, mark - at);
    if (mark < token.size()) bytes += ' ';
    at = mark + kSpaceMark.size();
  }
  return bytes;
}

}  // namespace

struct Tokenizer::Work {
  explicit Work(size_t bytes) : cache(bytes) {}
  Pieces pieces;
  MergeScratch scratch;
  PieceCache cache;
  std::string normal;
  bool first = true;  // the stretch begins the text
};

Result<Tokenizer> Tokenizer::create(VocabSpec spec) {
  SE_TRY(check(spec));
  auto data = std::make_unique<Data>();
  data->spec = std::move(spec);
  const VocabSpec& vocab = data->spec;
  const bool bytes = vocab.model == "gpt2";
  const size_t tokens = vocab.tokens.size();
  std::unordered_map<int32_t, const MatchRule*> rules;
  for (const MatchRule& rule : vocab.rules) rules[rule.id] = &rule;
  TokenIds mergeable;  // what text that is no control token may become
  data->ids.reserve(tokens);
  mergeable.reserve(bytes ? 0 : tokens);
  data->bytes.reserve(tokens);
  for (size_t id = 0; id < tokens; ++id) {
    const std::string& token = vocab.tokens[id];
    const TokenType type = type_of(vocab, id);
    const bool control = type == TokenType::kControl || type == TokenType::kUnknown;
    const bool verbatim = control || type == TokenType::kUserDefined;
    data->ids.try_emplace(token, int32_t(id));
    if (bytes) {
      data->bytes.push_back(verbatim ? token : token_to_bytes(token));
    } else {
      data->bytes.push_back(control ? token : char_token_bytes(token, type));
      if (type == TokenType::kNormal || type == TokenType::kUserDefined)
        mergeable.try_emplace(token, int32_t(id));
    }
    if (!verbatim) continue;
    const auto found = rules.find(int32_t(id));
    MatchRule rule = found == rules.end() ? MatchRule{} : *found->second;
    rule.id = int32_t(id);
    // SentencePiece looks for user-defined symbols in the normalized text. A control token is always what the
    // raw text spells: its place among the bytes that others wrote must be known.
    const bool normalized = !control && (rule.normalized || vocab.model == "llama");
    if (!normalized) {
      data->raw.add(token, rule, control);
    } else {
      data->normalized.add(bytes ? token : marked_spaces(token), rule, control);
    }
  }
  if (bytes) {
    data->split = find_pretokenizer(vocab.pre);
    SE_ASSIGN(data->bpe, Bpe::create(data->ids, vocab.merges));
    for (size_t id = 0; vocab.ignore_merges && id < tokens; ++id) {
      if (type_of(vocab, id) == TokenType::kNormal) data->bpe.take_whole(data->bytes[id], int32_t(id));
    }
  } else {
    SE_ASSIGN(data->chars, CharBpe::create(vocab, std::move(mergeable)));
  }
  return Tokenizer(std::move(data));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  return encode_with_plain(text, {}, options);
}

std::vector<int32_t> Tokenizer::encode_with_plain(std::string_view text,
                                                  const std::vector<Span>& plain,
                                                  EncodeOptions options) const {
  std::vector<int32_t> ids;
  Work work(text.size());
  const VocabSpec& vocab = data_->spec;
  if (options.add_special && vocab.add_bos) ids.push_back(vocab.bos);
  for (size_t at = 0; at < text.size();) {
    const TokenMatch match = data_->raw.find(text, at, options.parse_special, plain);
    const size_t end = match.begin == text.npos ? text.size() : match.begin;
    if (end > at) {
      work.first = at == 0;
      encode_stretch(text.substr(at, end - at), work, ids);
    }
    if (match.begin == text.npos) break;
    const bool doubled = match.begin == 0 && match.id == vocab.bos && !ids.empty();
    if (!doubled) ids.push_back(match.id);
    at = match.begin + match.size;
  }
  if (options.add_special && vocab.add_eos) ids.push_back(vocab.eos);
  return ids;
}

std::string_view Tokenizer::normalize(std::string_view text, Work& work) const {
  const VocabSpec& vocab = data_->spec;
  if (vocab.nfc && may_change_in_nfc(text)) return work.normal = to_nfc(text);
  if (data_->split != nullptr) return text;
  work.normal.clear();
  const bool spared = vocab.prefix_spares_space && (text[0] == ' ' || text.starts_with(kSpaceMark));
  if (vocab.add_space_prefix && (work.first || !vocab.prefix_once) && !spared) work.normal = kSpaceMark;
  append_marked_spaces(text, work.normal);
  return work.normal;
}

// A stretch of text between tokens that were matched in the raw text.
void Tokenizer::encode_stretch(std::string_view text, Work& work, std::vector<int32_t>& out) const {
  const std::string_view normal = normalize(text, work);
  for (size_t at = 0; at < normal.size();) {
    const TokenMatch match = data_->normalized.find(normal, at, false, {});
    const size_t end = match.begin == normal.npos ? normal.size() : match.begin;
    if (end > at) encode_piece(normal.substr(at, end - at), work, out);
    if (match.begin == normal.npos) break;
    out.push_back(match.id);
    at = match.begin + match.size;
  }
}

void Tokenizer::encode_piece(std::string_view text, Work& work, std::vector<int32_t>& out) const {
  if (data_->split == nullptr) return data_->chars.encode(text, work.scratch, work.cache, out);
  work.pieces.clear();
  split(*data_->split, text, work.pieces);
  for (const std::string_view piece : work.pieces) {
    if (work.cache.find(piece, out)) continue;
    const size_t from = out.size();
    data_->bpe.encode(piece, work.scratch, out);
    work.cache.add(piece, out, from);
  }
}

std::string Tokenizer::decode_bytes(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special || !is_special(id)) bytes += token_bytes(id);
  }
  return bytes;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  const std::string bytes = decode_bytes(ids, skip_special);
  return to_valid_utf8(std::string_view(bytes).substr(adds_space() && bytes.starts_with(' ') ? 1 : 0));
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

}  // namespace se::text
