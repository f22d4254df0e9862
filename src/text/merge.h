// text/merge.h -- the merge loop of byte-pair encoding, shared by byte-level and SentencePiece-style
// vocabularies. Source: Sennrich et al. 2016; which pair comes first is the vocabulary's business
// (`Merge::rank`).
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace se::text {

// One symbol of the piece being merged: a doubly linked list over an array, in the order of the text.
struct Symbol {
  int32_t id;              // of the token, or -1: a character that is none
  int32_t previous, next;  // indices, -1 = none
  uint32_t begin, size;    // bytes of the piece; size 0: merged into its left neighbour
};

// What two adjacent symbols become; the lowest rank is merged first.
struct Merge {
  int32_t rank = 0;
  int32_t id = -1;
};

struct Candidate {
  Merge merge;
  int32_t left;   // index of the left symbol
  uint32_t size;  // bytes of both symbols
  // std heaps keep the greatest on top: order so that the lowest (rank, position) is the greatest.
  bool operator<(const Candidate& other) const {
    return merge.rank != other.merge.rank ? merge.rank > other.merge.rank : left > other.left;
  }
};

// Memory that is reused from piece to piece.
struct MergeScratch {
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;

  void clear() { symbols.clear(), heap.clear(); }
  void add(int32_t id, size_t begin, size_t size) {
    const int32_t index = int32_t(symbols.size());
    if (index > 0) symbols.back().next = index;
    symbols.push_back({id, index - 1, -1, uint32_t(begin), uint32_t(size)});
  }
};

// Merges the symbols of `s` until no pair is left: the pair of the lowest rank first, the leftmost on ties.
// find(left, right, merge) tells whether two adjacent symbols merge, and into what. O(n log n).
template <typename Find>
void merge_symbols(MergeScratch& s, const Find& find) {
  std::vector<Symbol>& symbols = s.symbols;
  const auto offer = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    Candidate c{{}, left, symbols[left].size + symbols[right].size};
    if (!find(symbols[left], symbols[right], c.merge)) return;
    s.heap.push_back(c);
    std::push_heap(s.heap.begin(), s.heap.end());
  };
  for (int32_t i = 0; i + 1 < int32_t(symbols.size()); ++i) offer(i, i + 1);
  while (!s.heap.empty()) {
    std::pop_heap(s.heap.begin(), s.heap.end());
    const Candidate best = s.heap.back();
    s.heap.pop_back();
    // A candidate is stale when a symbol of its pair was merged away or its pair no longer makes its token.
    Symbol& left = symbols[best.left];
    if (left.size == 0 || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    Merge merge;
    if (left.size + right.size != best.size || !find(left, right, merge) || merge.id != best.merge.id)
      continue;
    left.id = merge.id;
    left.size = best.size;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) symbols[left.next].previous = best.left;
    offer(left.previous, best.left);
    offer(best.left, left.next);
  }
}

}  // namespace se::text
