// text/detokenizer.h -- token ids to text as they arrive, for streaming.
#pragma once
#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace se::text {

// The pieces returned by push and finish, joined, are Tokenizer::decode of all ids pushed, and each piece
// is valid UTF-8 by itself: bytes of an unfinished character are held back. One thread.
class Detokenizer {
 public:
  // `tokenizer` must outlive it. skip_special: control tokens give no text.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that is certain after one more token; may be empty.
  std::string push(int32_t id);
  // What was held back, as U+FFFD; the detokenizer is as new afterwards.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool begins_ = true;  // no byte has come yet
  std::string held_;    // at most 3 bytes: the beginning of a character
};

}  // namespace se::text
