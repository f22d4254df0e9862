#include "text/special_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace se::text {
namespace {

bool touches(const std::vector<Span>& plain, size_t begin, size_t size) {
  const auto after = std::upper_bound(
      plain.begin(), plain.end(), int64_t(begin), [](int64_t at, const Span& span) { return at < span.end; });
  return after != plain.end() && after->begin < int64_t(begin + size);
}

bool space_at(std::string_view text, size_t at) {
  return char_class(code_point_at(text, at).value) == CharClass::kSpace;
}

bool touches_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is_word(code_point_at(text, character_before(text, begin)).value)) ||
         (end < text.size() && is_word(code_point_at(text, end).value));
}

}  // namespace

void SpecialTokens::add(std::string_view text, const MatchRule& rule, bool control) {
  if (text.empty()) return;
  first_[uint8_t(text[0])] = true;
  int32_t node = 0;
  Node* last = nullptr;
  for (const char byte : text) {
    last = &edges_[uint64_t(node) << 8 | uint8_t(byte)];
    if (last->next < 0) last->next = nodes_++;
    node = last->next;
  }
  if (last->entry >= 0) return;
  last->entry = int32_t(entries_.size());
  entries_.push_back({rule, control});
}

TokenMatch SpecialTokens::match_at(std::string_view text,
                                   size_t at,
                                   bool parse_control,
                                   const std::vector<Span>& plain) const {
  TokenMatch best;
  int32_t node = 0;
  for (size_t end = at; end < text.size();) {
    const Node* found = edges_.find(uint64_t(node) << 8 | uint8_t(text[end++]));
    if (found == nullptr) break;
    node = found->next;
    if (found->entry < 0) continue;
    const Entry& entry = entries_[size_t(found->entry)];
    if (entry.control && (!parse_control || touches(plain, at, end - at))) continue;
    if (entry.rule.single_word && touches_word(text, at, end)) continue;
    best = {at, end - at, found->entry};
  }
  return best;
}

TokenMatch SpecialTokens::find(std::string_view text,
                               size_t from,
                               bool parse_control,
                               const std::vector<Span>& plain) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (!first_[uint8_t(text[at])]) continue;
    TokenMatch match = match_at(text, at, parse_control, plain);
    if (match.begin == text.npos) continue;
    const MatchRule& rule = entries_[size_t(match.id)].rule;
    match.id = rule.id;
    size_t end = match.begin + match.size;
    while (rule.rstrip && end < text.size() && space_at(text, end))
      end += size_t(code_point_at(text, end).size);
    while (rule.lstrip && match.begin > from) {
      const size_t before = character_before(text, match.begin);
      if (before < from || !space_at(text, before)) break;
      match.begin = before;
    }
    match.size = end - match.begin;
    return match;
  }
  return {};
}

}  // namespace se::text
