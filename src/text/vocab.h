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
  kByte = 6
};

struct VocabSpec {
  std::string model;                // "gpt2": byte-level BPE
  std::string pre;                  // name of the pre-tokenizer, see pretokenizer.h
  std::vector<std::string> tokens;  // index = id; byte-level code points for normal tokens
  std::vector<int32_t> types;       // TokenType per token; empty = all normal
  std::vector<std::string> merges;  // "left right", best rank first
  std::vector<float> scores;        // used by score-based models only
  int32_t bos = -1, eos = -1, eot = -1, eom = -1, unk = -1, pad = -1;  // ids, -1 = none
  bool add_bos = false, add_eos = false, add_space_prefix = false;
};

}  // namespace se::text
