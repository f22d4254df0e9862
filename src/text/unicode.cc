#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "text/unicode_additions.h"

namespace se::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Lead {
  int size;      // bytes of the character, 0 for a byte that starts none
  uint8_t low;   // allowed range of the second byte: rules out overlong forms, surrogates
  uint8_t high;  // and values over U+10FFFF
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte < 0xF0) return {3, uint8_t(byte == 0xE0 ? 0xA0 : 0x80), uint8_t(byte == 0xED ? 0x9F : 0xBF)};
  if (byte < 0xF5) return {4, uint8_t(byte == 0xF0 ? 0x90 : 0x80), uint8_t(byte == 0xF4 ? 0x8F : 0xBF)};
  return {0, 0, 0};
}

// How many bytes from `at` on fit the character that starts there; the size of the character if whole.
int valid_prefix(std::string_view text, size_t at, const Lead& lead) {
  int n = 1;
  for (; n < lead.size && at + n < text.size(); ++n) {
    const uint8_t byte = text[at + n];
    const uint8_t low = n == 1 ? lead.low : 0x80, high = n == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) break;
  }
  return n;
}

bool is_space(int32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

template <size_t N>
bool in_ranges(const CodePointRange (&ranges)[N], int32_t c) {
  const auto at = std::lower_bound(
      std::begin(ranges), std::end(ranges), c, [](const CodePointRange& r, int32_t v) { return r.last < v; });
  return at != std::end(ranges) && at->first <= c;
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t at) {
  const uint8_t first = text[at];
  if (first < 0x80) return {first, 1};
  const Lead lead = lead_of(first);
  if (lead.size == 0 || valid_prefix(text, at, lead) != lead.size) return {};
  int32_t value = first & (0x7F >> lead.size);
  for (int n = 1; n < lead.size; ++n) value = (value << 6) | (uint8_t(text[at + n]) & 0x3F);
  return {value, lead.size};
}

size_t incomplete_suffix(std::string_view text) {
  const size_t most = std::min<size_t>(3, text.size());
  for (size_t n = most; n > 0; --n) {
    const size_t at = text.size() - n;
    const Lead lead = lead_of(text[at]);
    if (lead.size > int(n) && valid_prefix(text, at, lead) == int(n)) return n;
  }
  return 0;
}

void append_utf8(std::string& out, int32_t value) {
  if (value < 0x80) {
    out += char(value);
  } else if (value < 0x800) {
    out += char(0xC0 | (value >> 6));
    out += char(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    out += char(0xE0 | (value >> 12));
    out += char(0x80 | ((value >> 6) & 0x3F));
    out += char(0x80 | (value & 0x3F));
  } else {
    out += char(0xF0 | (value >> 18));
    out += char(0x80 | ((value >> 12) & 0x3F));
    out += char(0x80 | ((value >> 6) & 0x3F));
    out += char(0x80 | (value & 0x3F));
  }
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const Lead lead = lead_of(bytes[at]);
    const int n = lead.size == 0 ? 1 : valid_prefix(bytes, at, lead);
    if (n == lead.size) {
      out += bytes.substr(at, n);
    } else {
      out += kReplacement;
    }
    at += n;
  }
  return out;
}

CharClass char_class(int32_t c) {
  if (c < 0) return CharClass::kOther;
  if (c < 0x80) {
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return CharClass::kLetter;
    if (c >= '0' && c <= '9') return CharClass::kNumber;
    return is_space(c) ? CharClass::kSpace : CharClass::kOther;
  }
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    case UTF8PROC_CATEGORY_CN:
      if (in_ranges(kNewLetters, c)) return CharClass::kLetter;
      return in_ranges(kNewNumbers, c) ? CharClass::kNumber : CharClass::kOther;
    default:
      return is_space(c) ? CharClass::kSpace : CharClass::kOther;
  }
}

}  // namespace se::text
