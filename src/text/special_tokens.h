// text/special_tokens.h -- finds tokens that are matched verbatim before BPE sees the text.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/flat_map.h"
#include "text/vocab.h"

namespace se::text {

// A half-open range of bytes of a text.
struct Span {
  int64_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

struct TokenMatch {
  size_t begin = std::string_view::npos;  // npos = no match
  size_t size = 0;
  int32_t id = -1;
};

// Leftmost match wins, the longest among those that start there, as in the reference. A trie: each position
// costs the bytes that fit, so at most the length of the longest token.
class SpecialTokens {
 public:
  // The first token of a text counts. `rule.normalized` is the caller's business.
  void add(std::string_view text, const MatchRule& rule, bool control);
  bool empty() const { return entries_.empty(); }

  // First match at or after `from`. A control token is found only if `parse_control`, and never where it
  // would touch a byte of `plain` (sorted, disjoint): text of others may not steer the model. White space
  // that a token takes along is part of the match; it does not reach back before `from`.
  TokenMatch find(std::string_view text,
                  size_t from,
                  bool parse_control,
                  const std::vector<Span>& plain) const;

 private:
  struct Entry {
    MatchRule rule;
    bool control = false;
  };
  struct Node {
    int32_t next = -1;   // of the edge that leads here: the node behind it
    int32_t entry = -1;  // of the token that ends there
  };
  TokenMatch match_at(std::string_view text,
                      size_t at,
                      bool parse_control,
                      const std::vector<Span>& plain) const;

  std::vector<Entry> entries_;
  std::array<bool, 256> first_{};  // bytes that begin a token
  FlatMap<Node> edges_;            // node << 8 | byte; the root is node 0
  int32_t nodes_ = 1;
};

}  // namespace se::text
