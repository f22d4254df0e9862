#include "kernels/topk/topk.h"

#include <emmintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <numeric>

#include "base/check.h"

namespace se {
namespace {

// Ascending keys are descending ranks: the best score has the smallest key. NaN, of either sign, is last.
// Signed and without branches, so that any vector unit can make them.
inline int32_t key_of(float score) {
  const int32_t u = std::bit_cast<int32_t>(score + 0.f);  // -0 + 0 is +0
  const int32_t key = u ^ (int32_t(0x80000000u) | ~(u >> 31));
  return (u & 0x7fffffff) > 0x7f800000 ? 0x7fffffff : key;
}

// Whole registers of SSE2, which every x86-64 has: compilers do not find these two loops.
inline __m128i pick(__m128i which, __m128i a, __m128i b) {
  return _mm_or_si128(_mm_and_si128(which, a), _mm_andnot_si128(which, b));
}
inline __m128i load4(const int32_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

struct Range {
  int32_t least, most;
};
Range range_of(const int32_t* keys, int64_t n) {
  __m128i low = _mm_set1_epi32(keys[0]), high = low;
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const __m128i x = load4(keys + i);
    low = pick(_mm_cmplt_epi32(x, low), x, low), high = pick(_mm_cmpgt_epi32(x, high), x, high);
  }
  alignas(16) int32_t lows[4], highs[4];
  _mm_store_si128(reinterpret_cast<__m128i*>(lows), low);
  _mm_store_si128(reinterpret_cast<__m128i*>(highs), high);
  Range r{*std::min_element(lows, lows + 4), *std::max_element(highs, highs + 4)};
  for (; i < n; ++i) r = {std::min(r.least, keys[i]), std::max(r.most, keys[i])};
  return r;
}

// The places of the keys up to `last`, ascending; how many. `out` has room for n.
int64_t places_up_to(const int32_t* keys, int64_t n, int32_t last, int32_t* out) {
  const __m128i bound = _mm_set1_epi32(last);
  const auto above = [&](int64_t i) { return _mm_cmpgt_epi32(load4(keys + i), bound); };
  int64_t found = 0, i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m128i low = _mm_packs_epi32(above(i), above(i + 4)),
                  high = _mm_packs_epi32(above(i + 8), above(i + 12));
    uint32_t bits = ~uint32_t(_mm_movemask_epi8(_mm_packs_epi16(low, high))) & 0xffff;
    for (; bits; bits &= bits - 1) out[found++] = int32_t(i) + std::countr_zero(bits);
  }
  for (; i < n; ++i) {
    out[found] = int32_t(i);
    found += keys[i] <= last;
  }
  return found;
}

// Keys [first, last] of some: those up to `last` are k or more, those below `first` fewer, by `rest`.
struct Stretch {
  int32_t first = 0, last = 0;
  int64_t rest = 0;
};

// The stretch that holds the k-th of n keys. Stretches divide the range of the keys; digits of fixed place
// would put most scores, which lie close together, into a few counters whose updates wait for each other.
Stretch find_stretch(const int32_t* keys, int64_t n, int64_t k) {
  constexpr int kBits = 10;
  const auto [least, most] = range_of(keys, n);
  const int shift = std::max(0, int(std::bit_width(uint32_t(most) - uint32_t(least))) - kBits);
  std::array<int32_t, 1 << kBits> count{};
  for (int64_t i = 0; i < n; ++i) ++count[(uint32_t(keys[i]) - uint32_t(least)) >> shift];
  uint32_t stretch = 0;
  while (count[stretch] < k) k -= count[stretch++];
  const int64_t first = least + (int64_t(stretch) << shift), last = first + (int64_t{1} << shift) - 1;
  return {int32_t(first), int32_t(std::min<int64_t>(last, most)), k};
}

}  // namespace

void top_k(std::span<const float> score, int64_t k, std::vector<int32_t>& out) {
  out.clear();
  const int64_t n = int64_t(score.size());
  if (k <= 0) return;
  if (k >= n) {
    out.resize(size_t(n));
    std::iota(out.begin(), out.end(), 0);
    return;
  }
  const auto room = std::make_unique_for_overwrite<int32_t[]>(size_t(n) * 3);
  int32_t *const keys = room.get(), *const places = keys + n, *const close = places + n;
  const float* from = score.data();
  for (int64_t i = 0; i < n; ++i) keys[i] = key_of(from[i]);
  Stretch s = find_stretch(keys, n, k);
  const int64_t left = places_up_to(keys, n, s.last, places);  // what lies behind the stretch is out
  int64_t n_close = left;
  for (int64_t i = 0; i < left; ++i) close[i] = keys[places[i]];
  while (s.first != s.last) {
    const auto outside = [&](int32_t key) { return key < s.first || key > s.last; };
    n_close = std::remove_if(close, close + n_close, outside) - close;
    s = find_stretch(close, n_close, s.rest);
  }
  out.resize(size_t(k));
  int64_t taken = 0, ties = s.rest;
  for (int64_t i = 0; taken < k; ++i) {
    SE_DCHECK(i < left, "{} of {}", taken, k);
    const int32_t key = keys[places[i]];
    const bool tie = key == s.first && ties > 0;
    out[size_t(taken)] = places[i];
    ties -= tie;
    taken += int64_t(key < s.first) + tie;
  }
}

void max_pool(std::span<const float> score, int width, std::span<float> out) {
  SE_CHECK(width > 0 && width % 2 == 1, "width {}: expected an odd number", width);
  SE_CHECK(out.size() == score.size(), "{} results for {} scores", out.size(), score.size());
  const int64_t n = int64_t(score.size());
  const float* in = score.data();
  std::copy(score.begin(), score.end(), out.begin());
  for (int64_t off = 1; off <= std::min<int64_t>(width / 2, n - 1);
       ++off) {  // whole rows at a time: vectorised
    for (int64_t i = 0; i < n - off; ++i) out[size_t(i)] = std::max(out[size_t(i)], in[i + off]);
    for (int64_t i = off; i < n; ++i) out[size_t(i)] = std::max(out[size_t(i)], in[i - off]);
  }
}

}  // namespace se
