// text/piece_cache.h -- the ids of pieces met before in the same text: words repeat.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace se::text {

// One text, one thread. Memory is bounded whatever the text is.
class PieceCache {
 public:
  static constexpr size_t kMostBytes = 48;  // longer pieces are rare and not kept

  // `bytes` of text are expected: small texts get a small table, or none.
  explicit PieceCache(size_t bytes);

  // Appends the ids of `piece` if they are known.
  bool find(std::string_view piece, std::vector<int32_t>& out) const;
  // Keeps ids[from..] as those of `piece`.
  void add(std::string_view piece, const std::vector<int32_t>& ids, size_t from);

 private:
  struct Entry {
    uint64_t hash = 0;
    uint32_t text = 0, first = 0;  // where its bytes and its ids begin
    uint16_t size = 0, count = 0;  // size 0 = empty
  };
  static constexpr size_t kMostText = size_t(1) << 20;

  std::vector<Entry> table_;  // a power of two, or empty: each piece has one place, the newest has it
  std::string text_;
  std::vector<int32_t> ids_;
};

}  // namespace se::text
