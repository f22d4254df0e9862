// text/jinja/lexer.h -- template source to tokens, with jinja2's white-space rules.
// trim_blocks and lstrip_blocks are on, keep_trailing_newline is off, as chat templates are rendered.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace se::text::jinja {

enum class TokenKind {
  kData,
  kOutputBegin,
  kOutputEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kReal,
  kOp,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // data, name, operator, digits, or the string with escapes resolved
  int line = 1;

  bool is_op(std::string_view op) const { return kind == TokenKind::kOp && text == op; }
  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
};

// The last token is kEnd. Comments and {% raw %} are resolved. Errors name the line.
Result<std::vector<Token>> lex(std::string_view source);

// Python's str.isspace for one code point (White_Space and U+001C to U+001F).
bool is_python_space(int32_t code_point);
// Text without white space at its ends, as byte offsets.
size_t strip_begin(std::string_view text);
size_t strip_end(std::string_view text);

}  // namespace se::text::jinja
