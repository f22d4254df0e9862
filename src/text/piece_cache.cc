#include "text/piece_cache.h"

#include <cstddef>
#include <functional>

namespace se::text {
namespace {

size_t table_size(size_t bytes) {
  if (bytes < 512) return 0;
  return bytes < (size_t(1) << 16) ? size_t(1) << 11 : size_t(1) << 14;
}

uint64_t hash_of(std::string_view piece) { return std::hash<std::string_view>{}(piece); }

}  // namespace

PieceCache::PieceCache(size_t bytes) : table_(table_size(bytes)) {}

bool PieceCache::find(std::string_view piece, std::vector<int32_t>& out) const {
  if (table_.empty() || piece.size() > kMostBytes) return false;
  const uint64_t hash = hash_of(piece);
  const Entry& entry = table_[hash & (table_.size() - 1)];
  if (entry.hash != hash || std::string_view(text_).substr(entry.text, entry.size) != piece) return false;
  out.insert(out.end(), ids_.begin() + entry.first, ids_.begin() + entry.first + entry.count);
  return entry.size > 0;
}

void PieceCache::add(std::string_view piece, const std::vector<int32_t>& ids, size_t from) {
  if (table_.empty() || piece.empty() || piece.size() > kMostBytes) return;
  if (text_.size() + piece.size() > kMostText) {
    table_.assign(table_.size(), Entry{});
    text_.clear();
    ids_.clear();
  }
  const uint64_t hash = hash_of(piece);
  table_[hash & (table_.size() - 1)] = {hash,
                                        uint32_t(text_.size()),
                                        uint32_t(ids_.size()),
                                        uint16_t(piece.size()),
                                        uint16_t(ids.size() - from)};
  text_ += piece;
  ids_.insert(ids_.end(), ids.begin() + std::ptrdiff_t(from), ids.end());
}

}  // namespace se::text
