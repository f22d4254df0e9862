#include "text/jinja/marked.h"

#include <algorithm>

namespace se::text::jinja {

void Marked::append(const Marked& other, size_t begin, size_t end) {
  const int64_t from = int64_t(begin), to = int64_t(end), shift = int64_t(text.size()) - from;
  text.append(other.text, begin, end - begin);
  for (const Span& span : other.content) {
    const Span clipped = {std::max(span.begin, from) + shift, std::min(span.end, to) + shift};
    if (clipped.begin >= clipped.end) continue;
    if (!content.empty() && content.back().end == clipped.begin) {
      content.back().end = clipped.end;
    } else {
      content.push_back(clipped);
    }
  }
}

Marked Marked::part(size_t begin, size_t end) const {
  Marked out;
  out.append(*this, begin, end);
  return out;
}

Marked Marked::all(std::string text) {
  Marked out(std::move(text));
  if (!out.text.empty()) out.content.push_back({0, int64_t(out.text.size())});
  return out;
}

Marked Marked::like(const Marked& source, std::string text) {
  return source.content.empty() ? Marked(std::move(text)) : all(std::move(text));
}

}  // namespace se::text::jinja
