#include "text/jinja/string_literal.h"

#include <charconv>

#include "base/fmt.h"
#include "text/unicode.h"

namespace se::text::jinja {
namespace {

// \xHH, \uHHHH, \UHHHHHHHH: the value, or -1.
int32_t hex_value(std::string_view digits, size_t count) {
  uint32_t value = 0;
  if (digits.size() < count) return -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + count, value, 16);
  const bool whole = error == std::errc() && end == digits.data() + count;
  const bool character = value <= 0x10FFFF && (value < 0xD800 || value > 0xDFFF);
  return whole && character ? int32_t(value) : -1;
}

}  // namespace

Result<std::string> unescape(std::string_view literal, int line) {
  static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
  std::string out;
  for (size_t at = 0; at < literal.size();) {
    if (literal[at] != '\\' || at + 1 == literal.size()) {
      out += literal[at++];
      continue;
    }
    const char c = literal[at + 1];
    at += 2;
    const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (const size_t simple = kFrom.find(c); simple != kFrom.npos) {
      out += kTo[simple];
    } else if (count > 0) {
      const int32_t value = hex_value(literal.substr(at), count);
      if (value < 0)
        return invalid(format("template line {}: '\\{}' wants {} hex digits of a character", line, c, count));
      append_utf8(out, value);
      at += count;
    } else if (c >= '0' && c <= '7') {
      int32_t value = c - '0';
      for (int n = 0; n < 2 && at < literal.size() && literal[at] >= '0' && literal[at] <= '7'; ++n) {
        value = value * 8 + (literal[at++] - '0');
      }
      append_utf8(out, value);
    } else if (c == 'N') {
      return unsupported(format("template line {}: '\\N{{...}}' in a string is not supported", line));
    } else if (c != '\n') {  // a backslash before a newline joins the lines
      out += '\\';
      out += c;
    }
  }
  return out;
}

}  // namespace se::text::jinja
