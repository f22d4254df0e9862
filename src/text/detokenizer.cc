#include "text/detokenizer.h"

#include <utility>

#include "text/unicode.h"

namespace se::text {

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  held_ += tokenizer_->token_bytes(id);
  const size_t certain = held_.size() - incomplete_suffix(held_);
  std::string text = to_valid_utf8(std::string_view(held_).substr(0, certain));
  held_.erase(0, certain);
  return text;
}

std::string Detokenizer::finish() { return to_valid_utf8(std::exchange(held_, {})); }

}  // namespace se::text
