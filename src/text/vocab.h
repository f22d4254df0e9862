// text/vocab.h -- the plain record a tokenizer is built from; the reader of a model file fills it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace se::text {

// Kinds of tokens, numbered as in GGUF's tokenizer.ggml.token_type.
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // special: matched only where special tokens are parsed, hidden on request
  kUserDefined = 4,  // matched verbatim in every text, never hidden
  kUnused = 5,
  kByte = 6  // "<0x41>": what characters without a token fall back to
};

// How a control or user-defined token is found, where it is not simply wherever its text stands.
struct MatchRule {
  int32_t id = -1;
  bool lstrip = false, rstrip = false;  // takes the white space before or after it along
  bool single_word = false;             // only where no word character touches it
  bool normalized = false;              // searched in the text as normalized, and after the other tokens
};

struct VocabSpec {
  // "gpt2": byte-level BPE. "llama": SentencePiece BPE, the pair whose token has the best score merges first.
  // "char-bpe": the same by ranks of merges, as tokenizer.json writes it.
  std::string model;
  std::string pre;                  // gpt2: name of the pre-tokenizer, see pretokenizer.h
  std::vector<std::string> tokens;  // index = id; byte-level code points for normal tokens of gpt2
  std::vector<int32_t> types;       // TokenType per token; empty = all normal
  std::vector<std::string> merges;  // "left right", best rank first
  std::vector<float> scores;        // llama: per token, the highest merges first
  std::vector<MatchRule> rules;     // each id once
  int32_t bos = -1, eos = -1, eot = -1, eom = -1, unk = -1, pad = -1;  // ids, -1 = none
  bool add_bos = false, add_eos = false;
  bool nfc = false;            // gpt2: text is brought to Unicode's normal form C first
  bool ignore_merges = false;  // a piece that is a token by itself is that token, whatever the merges say

  // llama and char-bpe: a space is put before the text, and before each stretch after a token that was
  // matched in the raw text. Decoding takes it off again.
  bool add_space_prefix = false;
  bool prefix_once = false;          // only where the text begins
  bool prefix_spares_space = false;  // not before a stretch that begins with a space
};

// Sets what GGUF files say only by the names of `model` and `pre` (spec/models.md 10.2): nfc, ignore_merges,
// and add_bos and add_space_prefix as they are where the file does not say.
void set_implied(VocabSpec& spec);

}  // namespace se::text
