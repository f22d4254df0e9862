#include "text/pretokenizer.h"

#include "text/unicode.h"

namespace se::text {
namespace {

CharClass class_at(std::string_view text, size_t at, int& size) {
  const CodePoint c = code_point_at(text, at);
  size = c.size;
  return char_class(c.value);
}

// End of the run of characters of class `wanted` that starts at `at` (at itself if there is none).
size_t run_end(std::string_view text, size_t at, CharClass wanted) {
  int size = 0;
  while (at < text.size() && class_at(text, at, size) == wanted) at += size;
  return at;
}

// 's|'t|'re|'ve|'m|'ll|'d  : bytes matched at `at`, or 0.
size_t contraction(std::string_view text, size_t at) {
  static constexpr std::string_view kForms[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
  for (const std::string_view form : kForms) {
    if (text.substr(at, form.size()) == form) return form.size();
  }
  return 0;
}

// \s+(?!\S)|\s+ at a white-space character: the run, without its last character when a word follows,
// because that one belongs to the word. A single space before a word is a piece by itself.
size_t space_end(std::string_view text, size_t at) {
  size_t last = at, end = at;
  int size = 0;
  while (end < text.size() && class_at(text, end, size) == CharClass::kSpace) {
    last = end;
    end += size;
  }
  return end == text.size() || last == at ? end : last;
}

// R0: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
void split_gpt2(std::string_view text, Pieces& out) {
  for (size_t at = 0; at < text.size();) {
    size_t end = at + (text[at] == '\'' ? contraction(text, at) : 0);
    if (end == at) {
      const size_t word = at + (text[at] == ' ' ? 1 : 0);
      int size = 0;
      const CharClass c = word < text.size() ? class_at(text, word, size) : CharClass::kSpace;
      end = c == CharClass::kSpace ? space_end(text, at) : run_end(text, word, c);
    }
    out.push_back(text.substr(at, end - at));
    at = end;
  }
}

// Digits(individual_digits) then R0: every character of category N is a piece of its own, and what
// lies between is split as if it stood alone.
void split_smollm(std::string_view text, Pieces& out) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    int size = 0;
    if (class_at(text, at, size) == CharClass::kNumber) {
      split_gpt2(text.substr(begin, at - begin), out);
      out.push_back(text.substr(at, size));
      begin = at + size;
    }
    at += size;
  }
  split_gpt2(text.substr(begin), out);
}

struct Entry {
  std::string_view name;  // tokenizer.ggml.pre
  PreTokenizer split;
};
constexpr Entry kTable[] = {{"gpt-2", split_gpt2}, {"smollm", split_smollm}};

}  // namespace

PreTokenizer find_pretokenizer(std::string_view name) {
  for (const Entry& entry : kTable) {
    if (entry.name == name) return entry.split;
  }
  return nullptr;
}

std::string pretokenizer_names() {
  std::string names;
  for (const Entry& entry : kTable) {
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  return names;
}

}  // namespace se::text
