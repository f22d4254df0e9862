// sparse/windows.h -- which tokens a windowed layer holds (spec/models.md 2.4): with a window of W, the token
// at position p sees positions p - W + 1 .. p. Driver and price share this arithmetic.
//
// The row of a windowed group has no gaps: it ends with the newest token, and after each step whole pages
// before window_begin() have gone. Pages begin at multiples of the page, so a token's place in its page is
// its position's. Of a prompt's chunk, tokens that no later step sees are attended and never stored.
#pragma once
#include <algorithm>
#include <cstdint>

namespace se {

// First position of a page that the token at position `next`, or a later one, sees.
inline int64_t window_begin(int64_t next, int window, int64_t page) {
  return std::max<int64_t>(next - window + 1, 0) / page * page;
}

// Tokens of a chunk of `n` from position `first` on that no later step sees, if all tokens before the chunk
// go with them; 0: the row simply grows.
inline int64_t window_skips(int64_t first, int64_t n, int window, int64_t page) {
  return std::clamp<int64_t>(window_begin(first + n, window, page) - first, 0, n);
}

// Most pages between two steps of a row without a ring.
inline int64_t window_pages(int window, int64_t page) { return (window + 2 * page - 3) / page; }

}  // namespace se
