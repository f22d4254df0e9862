#include "text/detokenizer.h"

#include <utility>

#include "text/unicode.h"

namespace se::text {

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  held_ += tokenizer_->token_bytes(id);
  const size_t certain = held_.size() - incomplete_suffix(held_);
  const bool space = begins_ && tokenizer_->adds_space() && held_.starts_with(' ');
  std::string text = to_valid_utf8(std::string_view(held_).substr(space, certain - space));
  begins_ = begins_ && held_.empty();
  held_.erase(0, certain);
  return text;
}

std::string Detokenizer::finish() {
  begins_ = true;
  return to_valid_utf8(std::exchange(held_, {}));
}

}  // namespace se::text
