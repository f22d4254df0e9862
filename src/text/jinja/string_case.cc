#include "text/jinja/string_case.h"

#include <utf8proc.h>

#include "text/jinja/lexer.h"
#include "text/unicode.h"

namespace se::text::jinja {
namespace {

// map: old code point, whether it is the first of its word -> new code point.
template <typename F>
std::string mapped(std::string_view text, F map) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (c.value < 0) {
      out += text[at];
    } else {
      append_utf8(out, map(c.value));
    }
    at += c.size;
  }
  return out;
}

bool is_cased(int32_t c) { return utf8proc_toupper(c) != c || utf8proc_tolower(c) != c; }

}  // namespace

std::string to_upper(std::string_view text) {
  return mapped(text, [](int32_t c) { return utf8proc_toupper(c); });
}

std::string to_lower(std::string_view text) {
  return mapped(text, [](int32_t c) { return utf8proc_tolower(c); });
}

std::string capitalize(std::string_view text) {
  bool first = true;
  return mapped(text, [&](int32_t c) {
    const bool upper = std::exchange(first, false);
    return upper ? utf8proc_totitle(c) : utf8proc_tolower(c);
  });
}

std::string title(std::string_view text, bool after_spaces) {
  bool begin = true;
  return mapped(text, [&](int32_t c) {
    const int32_t out = begin ? utf8proc_totitle(c) : utf8proc_tolower(c);
    begin = after_spaces
                ? is_python_space(c) ||
                      (c > 0 && c < 0x80 && std::string_view("-({[<").find(char(c)) != std::string_view::npos)
                : !is_cased(c);
    return out;
  });
}

}  // namespace se::text::jinja
