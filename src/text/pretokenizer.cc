#include "text/pretokenizer.h"

#include <algorithm>
#include <climits>
#include <iterator>
#include <span>
#include <utility>

#include "text/deepseek_letters.h"
#include "text/unicode.h"

namespace se::text {
namespace {

// The bytes of the piece that begins at `at`, or 0 when none does. What no match covers is a piece by itself.
using Match = size_t (*)(std::string_view text, size_t at);

struct Char {
  int32_t value = kInvalid;
  CharClass cls = CharClass::kOther;
  int size = 0;  // 0 = the end of the text
};

Char char_at(std::string_view text, size_t at) {
  if (at >= text.size()) return {};
  const CodePoint c = code_point_at(text, at);
  return {c.value, char_class(c.value), c.size};
}

bool is_letter(const Char& c) { return c.cls == CharClass::kLetter; }
bool is_mark(const Char& c) { return c.cls == CharClass::kMark; }
bool is_number(const Char& c) { return c.cls == CharClass::kNumber; }
bool is_space(const Char& c) { return c.cls == CharClass::kSpace; }
bool is_newline(const Char& c) { return c.value == '\r' || c.value == '\n'; }
bool is_word(const Char& c) { return is_letter(c) || is_mark(c); }
bool is_sign(const Char& c) { return c.cls == CharClass::kPunctuation || c.cls == CharClass::kSymbol; }
bool is_ascii_letter(const Char& c) { return c.value < 0x80 && is_letter(c); }
// [^\s\p{L}\p{N}]
bool is_other(const Char& c) { return c.size > 0 && !is_letter(c) && !is_number(c) && !is_space(c); }
// [^\s\p{L}\p{M}\p{N}]
bool is_other_no_mark(const Char& c) { return is_other(c) && !is_mark(c); }

using Is = bool (*)(const Char&);

// End of the run of characters that `wanted` takes, from `at` (at itself if there is none), `most` at most.
template <Is wanted>
size_t run_end(std::string_view text, size_t at, int most = INT_MAX) {
  for (Char c = char_at(text, at); c.size > 0 && most > 0 && wanted(c); c = char_at(text, at)) {
    at += size_t(c.size);
    --most;
  }
  return at;
}

// 's|'t|'re|'ve|'m|'ll|'d  : bytes matched at `at`, or 0.
template <bool ignore_case>
size_t contraction(std::string_view text, size_t at) {
  if (text[at] != '\'') return 0;
  const auto letter = [&](size_t n) {
    const char c = at + n < text.size() ? text[at + n] : '\0';
    return ignore_case && c >= 'A' && c <= 'Z' ? char(c + ('a' - 'A')) : c;
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return letter(2) == 'e' ? 3 : 0;
    case 'l':
      return letter(2) == 'l' ? 3 : 0;
    default:
      // U+017F, the long s, is an s where case is ignored.
      return ignore_case && text.substr(at + 1, 2) == "\xC5\xBF" ? 3 : 0;
  }
}

// \s+(?!\S)|\s+ at a white-space character: the run, without its last character when a word follows,
// because that one belongs to the word. A single space before a word is a piece by itself.
// With `newlines`, \s*[\r\n]+ comes first: a run with a line break ends after its last one.
template <bool newlines>
size_t spaces(std::string_view text, size_t at) {
  size_t last = at, end = at, line = at;
  for (Char c = char_at(text, end); is_space(c); c = char_at(text, end)) {
    last = end;
    end += size_t(c.size);
    if (newlines && is_newline(c)) line = end;
  }
  if (line > at) return line - at;
  return (end == text.size() || last == at ? end : last) - at;
}

// R0: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t gpt2(std::string_view text, size_t at) {
  if (const size_t n = contraction<false>(text, at)) return n;
  const size_t word = at + (text[at] == ' ');
  const Char c = char_at(text, word);
  if (is_letter(c)) return run_end<is_letter>(text, word) - at;
  if (is_number(c)) return run_end<is_number>(text, word) - at;
  if (is_other(c)) return run_end<is_other>(text, word) - at;
  return spaces<false>(text, at);
}

// R1, with {1,digits}: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
// ?[^\s\p{L}\p{N}]+[\r\n]*
// |\s*[\r\n]+|\s+(?!\S)|\s+ . R3 has [\p{L}\p{M}] for \p{L} in words, and no marks among the others.
template <int digits, Is word, Is other>
size_t words(std::string_view text, size_t at) {
  if (const size_t n = contraction<true>(text, at)) return n;
  const Char c = char_at(text, at);
  const size_t next = at + size_t(c.size);
  if (word(c)) return run_end<word>(text, at) - at;
  if (!is_number(c) && !is_newline(c) && word(char_at(text, next))) return run_end<word>(text, next) - at;
  if (is_number(c)) return run_end<is_number>(text, at, digits) - at;
  const size_t signs = at + (text[at] == ' ');
  if (other(char_at(text, signs))) return run_end<is_newline>(text, run_end<other>(text, signs)) - at;
  return spaces<true>(text, at);
}
constexpr Match kLlama3 = words<3, is_letter, is_other>;
constexpr Match kQwen2 = words<1, is_letter, is_other>;
constexpr Match kQwen35 = words<1, is_word, is_other_no_mark>;

// \p{N}{1,3}
size_t three_numbers(std::string_view text, size_t at) { return run_end<is_number>(text, at, 3) - at; }

// Digits(individual_digits=true)
size_t one_digit(std::string_view text, size_t at) {
  const CodePoint c = code_point_at(text, at);
  return is_numeric(c.value) ? size_t(c.size) : 0;
}

// [\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+
bool is_cjk_or_kana(const Char& c) {
  return (c.value >= 0x4E00 && c.value <= 0x9FA5) || (c.value >= 0x3040 && c.value <= 0x30FF);
}
size_t cjk_or_kana(std::string_view text, size_t at) { return run_end<is_cjk_or_kana>(text, at) - at; }

// [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*
// |\s*[\r\n]+|\s+(?!\S)|\s+
size_t deepseek_v3(std::string_view text, size_t at) {
  const Char c = char_at(text, at);
  const size_t next = at + size_t(c.size);
  if (is_word(c)) return run_end<is_word>(text, at) - at;
  const Char second = char_at(text, next);
  if (c.value < 0x80 && is_sign(c) && is_ascii_letter(second))
    return run_end<is_ascii_letter>(text, next) - at;
  if (!is_sign(c) && !is_newline(c) && is_word(second)) return run_end<is_word>(text, next) - at;
  const size_t signs = at + (text[at] == ' ');
  if (is_sign(char_at(text, signs))) return run_end<is_newline>(text, run_end<is_sign>(text, signs)) - at;
  return is_space(c) ? spaces<true>(text, at) : 0;
}

// The first DeepSeek families. [\r\n]
size_t newline(std::string_view text, size_t at) { return text[at] == '\r' || text[at] == '\n'; }

// \s?x+
template <Is x>
size_t spaced(std::string_view text, size_t at) {
  const Char c = char_at(text, at);
  const size_t next = at + size_t(c.size);
  if (is_space(c) && x(char_at(text, next))) return run_end<x>(text, next) - at;
  return run_end<x>(text, at) - at;
}

bool is_deepseek_letter(const Char& c) {
  const auto range = std::lower_bound(std::begin(kDeepseekLetters),
                                      std::end(kDeepseekLetters),
                                      c.value,
                                      [](const CodePointRange& r, int32_t v) { return r.last < v; });
  return range != std::end(kDeepseekLetters) && range->first <= c.value;
}
// [!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]
bool is_deepseek_sign(const Char& c) {
  const int32_t v = c.value;
  return (v >= 0x21 && v <= 0x2F) || (v >= 0x3A && v <= 0x7E) || (v >= 0xFF01 && v <= 0xFF0F) ||
         (v >= 0xFF1A && v <= 0xFF5E) || (v >= 0x2018 && v <= 0x201F) || (v >= 0x3000 && v <= 0x3002);
}
bool is_punctuation(const Char& c) { return c.cls == CharClass::kPunctuation; }

// \s+$ . Not inside a run: its beginning has been tried.
size_t last_spaces(std::string_view text, size_t at) {
  if (at > 0 && is_space(char_at(text, character_before(text, at)))) return 0;
  const size_t end = run_end<is_space>(text, at);
  return end == text.size() ? end - at : 0;
}

// [\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+
bool is_east_asian(const Char& c) {
  return (c.value >= 0x0800 && c.value <= 0x9FA5) || (c.value >= 0xAC00 && c.value <= 0xD7FF);
}
size_t east_asian(std::string_view text, size_t at) { return run_end<is_east_asian>(text, at) - at; }

// The steps are applied one inside the other: what a step cuts out, and what lies between, is cut by the
// rest.
constexpr Match kGpt2Steps[] = {gpt2};
constexpr Match kSmollmSteps[] = {one_digit, gpt2};
constexpr Match kLlama3Steps[] = {kLlama3};
constexpr Match kQwen2Steps[] = {kQwen2};
constexpr Match kQwen35Steps[] = {kQwen35};
constexpr Match kDeepseekV3Steps[] = {three_numbers, cjk_or_kana, deepseek_v3};
constexpr Match kDeepseekLlmSteps[] = {
    newline, spaced<is_deepseek_letter>, spaced<is_deepseek_sign>, last_spaces, east_asian, one_digit};
constexpr Match kDeepseekCoderSteps[] = {
    newline, spaced<is_letter>, spaced<is_punctuation>, east_asian, one_digit};

}  // namespace

struct PreTokenizer {
  std::string_view name;  // tokenizer.ggml.pre
  std::span<const Match> steps;
};

namespace {

constexpr PreTokenizer kTable[] = {{"gpt-2", kGpt2Steps},
                                   {"smollm", kSmollmSteps},
                                   {"llama-bpe", kLlama3Steps},
                                   {"qwen2", kQwen2Steps},
                                   {"qwen35", kQwen35Steps},
                                   {"glm4", kLlama3Steps},
                                   {"deepseek-v3", kDeepseekV3Steps},
                                   {"deepseek-llm", kDeepseekLlmSteps},
                                   {"deepseek-coder", kDeepseekCoderSteps}};

// Further names that GGUF files use.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {{"llama3", "llama-bpe"},
                                                                      {"llama-v3", "llama-bpe"},
                                                                      {"deepseek-r1-qwen", "qwen2"},
                                                                      {"chatglm-bpe", "glm4"}};

void split_by(std::span<const Match> steps, std::string_view text, Pieces& out) {
  if (text.empty()) return;
  if (steps.empty()) return out.push_back(text);
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t n = steps[0](text, at);
    if (n == 0) {
      at += size_t(code_point_at(text, at).size);
      continue;
    }
    split_by(steps.subspan(1), text.substr(begin, at - begin), out);
    split_by(steps.subspan(1), text.substr(at, n), out);
    begin = at += n;
  }
  split_by(steps.subspan(1), text.substr(begin), out);
}

}  // namespace

const PreTokenizer* find_pretokenizer(std::string_view name) {
  for (const auto& [alias, meant] : kAliases) {
    if (alias == name) name = meant;
  }
  for (const PreTokenizer& entry : kTable) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::string_view pretokenizer_name(const PreTokenizer& pretokenizer) { return pretokenizer.name; }

std::string pretokenizer_names() {
  std::string names;
  for (const PreTokenizer& entry : kTable) {
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  return names;
}

void split(const PreTokenizer& pretokenizer, std::string_view text, Pieces& out) {
  split_by(pretokenizer.steps, text, out);
}

}  // namespace se::text
