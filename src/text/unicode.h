// text/unicode.h -- UTF-8 decoding that never fails, and the few character classes tokenizers need.
// An invalid byte is a character of its own (kInvalid, one byte long, class kOther), so that any
// byte string can be scanned and every byte is seen exactly once.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace se::text {

// Code point of a byte that is not part of valid UTF-8.
inline constexpr int32_t kInvalid = -1;

struct CodePoint {
  int32_t value = kInvalid;  // or kInvalid
  int size = 1;              // bytes, 1 to 4
};

// The character that starts at byte `at` of `text` (at < text.size()). Overlong forms, surrogates and
// values over U+10FFFF are invalid, as in RFC 3629.
CodePoint code_point_at(std::string_view text, size_t at);

// The begin of the character that ends at `end` > 0.
size_t character_before(std::string_view text, size_t end);

// The size in bytes of an unfinished character at the end of `text`: the longest suffix (0 to 3 bytes)
// that is a proper prefix of a valid character.
size_t incomplete_suffix(std::string_view text);

// Appends `value` (0 to U+10FFFF) as UTF-8.
void append_utf8(std::string& out, int32_t value);

// `bytes` with each maximal invalid part replaced by U+FFFD, as the Unicode standard (3.9, best
// practice) and Rust's from_utf8_lossy do. The result is valid UTF-8.
std::string to_valid_utf8(std::string_view bytes);

struct CodePointRange {
  int32_t first, last;  // inclusive
};

// The general categories as far as pre-tokenizers tell them apart; kSpace is the property White_Space,
// whatever the category, and kOther what is left: control, format, private and unassigned characters, invalid
// bytes.
enum class CharClass : uint8_t { kLetter, kMark, kNumber, kPunctuation, kSymbol, kSpace, kOther };

// Unicode 16.0 (utf8proc and unicode_additions.h).
CharClass char_class(int32_t code_point);

// Numbers as Unicode 17.0 has them, which the reference's Digits step goes by.
bool is_numeric(int32_t code_point);

// \w of regular expressions: letters, marks, decimal digits, connectors, joiners and what else is alphabetic.
bool is_word(int32_t code_point);

// Unicode's normal form C; the same text where it is in that form already. Invalid bytes stay as they are.
// O(n log n) at worst, linear in text without long runs of combining marks.
std::string to_nfc(std::string_view text);
// False only if `text` is in normal form C for certain.
bool may_change_in_nfc(std::string_view text);

}  // namespace se::text
