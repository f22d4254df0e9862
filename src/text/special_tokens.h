// text/special_tokens.h -- finds tokens that are matched in raw text before BPE sees it.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

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

// Leftmost match wins, the longest among those that start there (Aho-Corasick "leftmost-longest", as the
// reference). A match is one look-up per distinct length of tokens with that first byte.
class SpecialTokens {
 public:
  void add(std::string text, int32_t id, bool control);
  bool empty() const { return ids_.empty(); }

  // First match at or after `from`. A control token is found only if `parse_control`, and never where it
  // would touch a byte of `plain` (sorted, disjoint): text of others may not steer the model.
  TokenMatch find(std::string_view text,
                  size_t from,
                  bool parse_control,
                  const std::vector<Span>& plain) const;

 private:
  struct Entry {
    int32_t id;
    bool control;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  std::unordered_map<std::string, Entry, Hash, std::equal_to<>> ids_;
  std::array<std::vector<size_t>, 256> lengths_;  // by first byte, longest first
};

}  // namespace se::text
