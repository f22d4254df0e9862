#include "text/special_tokens.h"

#include <algorithm>
#include <functional>

namespace se::text {
namespace {

bool touches(const std::vector<Span>& plain, size_t begin, size_t size) {
  const auto after = std::upper_bound(
      plain.begin(), plain.end(), int64_t(begin), [](int64_t at, const Span& span) { return at < span.end; });
  return after != plain.end() && after->begin < int64_t(begin + size);
}

}  // namespace

void SpecialTokens::add(std::string text, int32_t id, bool control) {
  if (text.empty()) return;
  std::vector<size_t>& lengths = lengths_[uint8_t(text[0])];
  const auto at = std::lower_bound(lengths.begin(), lengths.end(), text.size(), std::greater<>());
  if (at == lengths.end() || *at != text.size()) lengths.insert(at, text.size());
  ids_.try_emplace(std::move(text), Entry{id, control});
}

TokenMatch SpecialTokens::find(std::string_view text,
                               size_t from,
                               bool parse_control,
                               const std::vector<Span>& plain) const {
  for (size_t at = from; at < text.size(); ++at) {
    for (const size_t length : lengths_[uint8_t(text[at])]) {
      if (length > text.size() - at) continue;
      const auto found = ids_.find(text.substr(at, length));
      if (found == ids_.end()) continue;
      if (found->second.control && (!parse_control || touches(plain, at, length))) continue;
      return {at, length, found->second.id};
    }
  }
  return {};
}

}  // namespace se::text
