#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

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

constexpr bool is_space(int32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Symbols that are alphabetic nevertheless: letters in circles and squares.
constexpr CodePointRange kAlphabeticSymbols[] = {
    {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};

template <size_t N>
bool in_ranges(const CodePointRange (&ranges)[N], int32_t c) {
  const auto at = std::lower_bound(
      std::begin(ranges), std::end(ranges), c, [](const CodePointRange& r, int32_t v) { return r.last < v; });
  return at != std::end(ranges) && at->first <= c;
}

CharClass new_class(int32_t c) {
  const auto at =
      std::lower_bound(std::begin(kNewClasses), std::end(kNewClasses), c, [](const ClassRange& r, int32_t v) {
        return r.last < v;
      });
  return at != std::end(kNewClasses) && at->first <= c ? at->cls : CharClass::kOther;
}

constexpr std::array<CharClass, 0x80> ascii_classes() {
  std::array<CharClass, 0x80> classes{};
  for (int c = 0; c < 0x80; ++c) {
    const bool letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'z', number = c >= '0' && c <= '9';
    const bool symbol = c == '$' || c == '+' || c == '<' || c == '=' || c == '>' || c == '^' || c == '`' ||
                        c == '|' || c == '~';
    classes[size_t(c)] = letter                 ? CharClass::kLetter
                         : number               ? CharClass::kNumber
                         : symbol               ? CharClass::kSymbol
                         : is_space(c)          ? CharClass::kSpace
                         : c > 0x20 && c < 0x7F ? CharClass::kPunctuation
                                                : CharClass::kOther;
  }
  return classes;
}
constexpr std::array<CharClass, 0x80> kAscii = ascii_classes();

void append_decomposed(int32_t c, std::vector<int32_t>& points) {
  constexpr auto kOptions = utf8proc_option_t(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE);
  int32_t parts[8];  // a canonical decomposition has at most 4
  const utf8proc_ssize_t n = utf8proc_decompose_char(c, parts, std::ssize(parts), kOptions, nullptr);
  if (n <= 0 || n > std::ssize(parts)) return points.push_back(c);
  points.insert(points.end(), parts, parts + n);
}

// Canonical order (a stable sort of each run of combining marks: the library's own takes quadratic time),
// then composition.
void append_composed(std::vector<int32_t>& points, std::string& out) {
  const auto combining = [](int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (auto at = points.begin(); at != points.end();) {
    if (combining(*at) == 0) {
      ++at;
      continue;
    }
    const auto end = std::find_if(at, points.end(), [&](int32_t c) { return combining(c) == 0; });
    std::stable_sort(at, end, [&](int32_t a, int32_t b) { return combining(a) < combining(b); });
    at = end;
  }
  constexpr auto kOptions = utf8proc_option_t(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const utf8proc_ssize_t n = utf8proc_normalize_utf32(points.data(), std::ssize(points), kOptions);
  for (utf8proc_ssize_t i = 0; i < n; ++i) append_utf8(out, points[size_t(i)]);
  points.clear();
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

size_t character_before(std::string_view text, size_t end) {
  for (size_t n = std::min<size_t>(4, end); n > 1; --n) {
    if (size_t(code_point_at(text, end - n).size) == n) return end - n;
  }
  return end - 1;
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
  if (c < 0x80) return kAscii[size_t(c)];
  if (is_space(c)) return CharClass::kSpace;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return CharClass::kMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return CharClass::kPunctuation;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return CharClass::kSymbol;
    case UTF8PROC_CATEGORY_CN:
      return new_class(c);
    default:
      return CharClass::kOther;
  }
}

bool is_numeric(int32_t c) { return char_class(c) == CharClass::kNumber || in_ranges(kNewerNumbers, c); }

bool is_word(int32_t c) {
  const CharClass cls = char_class(c);
  if (cls == CharClass::kLetter || cls == CharClass::kMark) return true;
  if (cls == CharClass::kOther) return c == 0x200C || c == 0x200D;  // joiners
  if (cls == CharClass::kSymbol) return in_ranges(kAlphabeticSymbols, c);
  const utf8proc_category_t category = utf8proc_category(c);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_PC;
}

bool may_change_in_nfc(std::string_view text) {
  // U+0300 is the first character that composes with one before it or does not compose with itself; its
  // encoding begins with 0xCC.
  return std::any_of(text.begin(), text.end(), [](char c) { return uint8_t(c) >= 0xCC; });
}

std::string to_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<int32_t> points;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (c.value == kInvalid) {
      append_composed(points, out);
      out += text[at];
    } else {
      append_decomposed(c.value, points);
    }
    at += size_t(c.size);
  }
  append_composed(points, out);
  return out;
}

}  // namespace se::text
