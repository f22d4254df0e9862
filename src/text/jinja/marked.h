// text/jinja/marked.h -- a string that remembers which of its bytes were written by others.
// Chat content is marked when it enters a template; every operation carries the marks along, so that the
// tokenizer knows, in the rendered text, where control tokens must not be parsed. The bytes are those plain
// jinja2 would produce: marks live beside the text, not in it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/special_tokens.h"

namespace se::text::jinja {

struct Marked {
  std::string text;
  std::vector<Span> content;  // marked bytes: sorted, disjoint, never empty or touching

  Marked() = default;
  Marked(std::string s) : text(std::move(s)) {}  // NOLINT: implicit on purpose, unmarked
  Marked(const char* s) : text(s) {}             // NOLINT: implicit on purpose, unmarked

  // Appends bytes [begin, end) of `other` with their marks.
  void append(const Marked& other, size_t begin, size_t end);
  void append(const Marked& other) { append(other, 0, other.text.size()); }

  Marked part(size_t begin, size_t end) const;
  // The same text, all of it marked.
  static Marked all(std::string text);
  // `text` marked as a whole if any byte of `source` is: for operations that rewrite every character.
  static Marked like(const Marked& source, std::string text);
};

}  // namespace se::text::jinja
