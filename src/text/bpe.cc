#include "text/bpe.h"

#include <algorithm>

#include "base/fmt.h"
#include "text/unicode.h"

namespace se::text {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct ByteTables {
  std::array<int32_t, 256> to_code_point{};
  std::array<int16_t, 0x144> to_byte{};  // -1 = no stand-in
  ByteTables() {
    to_byte.fill(-1);
    int32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      to_code_point[byte] = stands_for_itself(byte) ? byte : next++;
      to_byte[to_code_point[byte]] = int16_t(byte);
    }
  }
};
const ByteTables& tables() {
  static const ByteTables kTables;
  return kTables;
}

uint64_t pair_key(int32_t left, int32_t right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }

// One symbol of the word being merged: a doubly linked list over an array. A symbol merged into its left
// neighbour has id -1.
struct Symbol {
  int32_t id;
  int32_t previous, next;  // indices, -1 = none
};

struct Candidate {
  int32_t rank, left, id;  // left: index of the left symbol; id: of the merged token
  // std heaps keep the greatest on top: order so that the lowest (rank, position) is the greatest.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : left > other.left;
  }
};

}  // namespace

int32_t byte_to_code_point(uint8_t byte) { return tables().to_code_point[byte]; }

std::string token_to_bytes(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = code_point_at(token, at);
    const bool known = c.value >= 0 && c.value < int32_t(tables().to_byte.size());
    const int16_t byte = known ? tables().to_byte[c.value] : int16_t(-1);
    if (byte < 0) return std::string(token);
    bytes += char(byte);
    at += c.size;
  }
  return bytes;
}

Result<Bpe> Bpe::create(const TokenIds& ids, const std::vector<std::string>& merges) {
  Bpe bpe;
  const auto id_of = [&](std::string_view token) {
    const auto found = ids.find(token);
    return found == ids.end() ? -1 : found->second;
  };
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, byte_to_code_point(uint8_t(byte)));
    bpe.byte_ids_[byte] = id_of(token);
  }
  bpe.merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view line = merges[rank];
    const size_t space = line.find(' ', 1);
    if (space == line.npos || space + 1 == line.size()) {
      return invalid(format("merge {} is '{}', wanted two tokens with a space between", rank, line));
    }
    const std::string_view left = line.substr(0, space), right = line.substr(space + 1);
    const std::string whole = std::string(left).append(right);
    const int32_t left_id = id_of(left), right_id = id_of(right), id = id_of(whole);
    if (left_id < 0 || right_id < 0 || id < 0) {
      const std::string_view missing = left_id < 0 ? left : right_id < 0 ? right : std::string_view(whole);
      return invalid(format("merge {} is '{}', but '{}' is not in the vocabulary", rank, line, missing));
    }
    bpe.merges_[pair_key(left_id, right_id)] = {int32_t(rank), id};
  }
  return bpe;
}

const Bpe::Merge* Bpe::find(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out) const {
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (const char c : piece) {
    const int32_t id = byte_ids_[uint8_t(c)];
    if (id < 0) continue;
    const int32_t index = int32_t(symbols.size());
    symbols.push_back({id, index - 1, index + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  std::vector<Candidate> heap;
  const auto offer = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const Merge* merge = find(symbols[left].id, symbols[right].id);
    if (merge == nullptr) return;
    heap.push_back({merge->rank, left, merge->id});
    std::push_heap(heap.begin(), heap.end());
  };
  for (int32_t i = 0; i + 1 < int32_t(symbols.size()); ++i) offer(i, i + 1);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate best = heap.back();
    heap.pop_back();
    // A candidate is stale when its left symbol was merged away or its pair no longer makes its token.
    Symbol& left = symbols[best.left];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    const Merge* merge = find(left.id, right.id);
    if (merge == nullptr || merge->id != best.id) continue;
    left.id = best.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = best.left;
    offer(left.previous, best.left);
    offer(best.left, left.next);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace se::text
