// text/tokenizer.h -- text to token ids and back, equal to Hugging Face `tokenizers` on valid UTF-8.
// Goals: exact ids, no crash and no lost byte on any input, safe handling of text written by others.
// Models: byte-level BPE, SentencePiece-style BPE by scores or merges with byte fallback. Others are refused
// by name. Non-goals: training, offsets.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/bpe.h"
#include "text/char_bpe.h"
#include "text/piece_cache.h"
#include "text/pretokenizer.h"
#include "text/special_tokens.h"
#include "text/vocab.h"

namespace se::text {

struct EncodeOptions {
  bool add_special = true;    // add BOS and EOS where the vocabulary asks for them and the text has none
  bool parse_special = true;  // control tokens written in the text become their ids, else plain bytes
};

// Immutable once made; every member may be called from any thread. Movable.
class Tokenizer {
 public:
  // Fails with kUnsupported for an unknown model or pre-tokenizer (naming those that are known) and with
  // kInvalid for a vocabulary that contradicts itself.
  static Result<Tokenizer> create(VocabSpec spec);

  // User-defined tokens are matched whatever the options say, as in the reference.
  // A BOS token that the text itself begins with is not added a second time (a prompt may be a rendered
  // chat). Invalid UTF-8: each invalid byte is a symbol character of its own and encodes as that byte's
  // token, so decode_bytes gives it back. A byte without a token in the vocabulary is dropped, as in the
  // reference.
  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const;

  // As encode, but control tokens that touch a byte of `plain` (sorted, disjoint ranges) are not parsed.
  // The rest is encoded as one text: the ids are those of the whole text unless a control token is
  // written inside `plain`. For rendered chats, see chat_template.h.
  std::vector<int32_t> encode_with_plain(std::string_view text,
                                         const std::vector<Span>& plain,
                                         EncodeOptions options = {}) const;

  // Valid UTF-8, each maximal invalid part as U+FFFD. Ids outside the vocabulary give nothing. Where the
  // vocabulary puts a space before every text, one space at the beginning is taken off again.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  std::string decode_bytes(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes of one token; empty for ids outside the vocabulary.
  std::string_view token_bytes(int32_t id) const;
  // The token as the vocabulary spells it; empty for ids outside.
  std::string_view token_text(int32_t id) const;
  // The id of a token as the vocabulary spells it, or -1.
  int32_t find(std::string_view token) const;

  bool is_special(int32_t id) const;  // control or unknown: hidden by skip_special
  bool adds_space() const { return data_->spec.add_space_prefix; }
  int32_t size() const { return int32_t(data_->spec.tokens.size()); }
  const VocabSpec& spec() const { return data_->spec; }
  int32_t bos() const { return data_->spec.bos; }
  int32_t eos() const { return data_->spec.eos; }

 private:
  struct Data {  // on the heap: maps hold views of its strings
    VocabSpec spec;
    TokenIds ids;
    std::vector<std::string> bytes;       // per token
    SpecialTokens raw, normalized;        // matched in the text as it is, and as it is after normalization
    const PreTokenizer* split = nullptr;  // null: characters, not bytes, are merged
    Bpe bpe;
    CharBpe chars;
  };
  struct Work;  // memory of one call
  explicit Tokenizer(std::unique_ptr<const Data> data) : data_(std::move(data)) {}
  void encode_stretch(std::string_view text, Work& work, std::vector<int32_t>& out) const;
  std::string_view normalize(std::string_view text, Work& work) const;
  void encode_piece(std::string_view text, Work& work, std::vector<int32_t>& out) const;

  std::unique_ptr<const Data> data_;
};

}  // namespace se::text
