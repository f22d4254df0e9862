#include "kernels/topk/topk.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "base/check.h"

namespace se {
namespace {

// Ascending keys are descending ranks: the best score has the smallest key. NaN, of either sign, is last.
inline uint32_t key_of(float score) {
  const uint32_t u = std::bit_cast<uint32_t>(score + 0.f);  // -0 + 0 is +0
  const uint32_t key = u & 0x80000000u ? u : 0x7fffffffu - u;
  return (u & 0x7fffffffu) > 0x7f800000u ? 0xffffffffu : key;
}

// The key of the k-th best, and how many of those with that very key belong to the k best.
struct Threshold {
  uint32_t key = 0;
  int64_t ties = 0;
};

// Radix select over the range of the keys: each pass counts 2,048 stretches of it and goes on with the keys
// of the stretch that holds the k-th. Scores lie close together; digits of fixed place would put most of them
// into a few counters, whose updates wait for each other. `left` is room for as many keys.
Threshold find_threshold(std::span<const uint32_t> keys, int64_t k, uint32_t* left) {
  constexpr int kBits = 11;
  for (;;) {
    uint32_t least = keys[0], most = keys[0];
    for (const uint32_t key : keys) least = std::min(least, key), most = std::max(most, key);
    const int shift = std::max(0, int(std::bit_width(most - least)) - kBits);
    std::array<int32_t, 1 << kBits> count{};
    for (const uint32_t key : keys) ++count[(key - least) >> shift];
    uint32_t stretch = 0;
    while (count[stretch] < k) k -= count[stretch++];
    if (shift == 0) return {least + stretch, k};
    size_t n = 0;
    for (const uint32_t key : keys) {
      left[n] = key;
      n += (key - least) >> shift == stretch;
    }
    keys = {left, n};
  }
}

}  // namespace

void top_k(std::span<const float> score, int64_t k, std::vector<int32_t>& out) {
  out.clear();
  const int64_t n = int64_t(score.size());
  if (k <= 0) return;
  k = std::min(k, n);
  out.resize(size_t(k) + 1);  // one more is written than counts
  if (k == n) {
    std::iota(out.begin(), out.end(), 0);
    out.pop_back();
    return;
  }
  std::vector<uint32_t> keys(size_t(n) * 2);
  for (int64_t i = 0; i < n; ++i) keys[size_t(i)] = key_of(score[size_t(i)]);
  const Threshold t = find_threshold({keys.data(), size_t(n)}, k, keys.data() + n);
  int64_t taken = 0, ties = t.ties;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t key = keys[size_t(i)];
    const bool tie = key == t.key && ties > 0;
    out[size_t(taken)] = int32_t(i);
    ties -= tie;
    taken += int64_t(key < t.key) + tie;
  }
  SE_DCHECK(taken == k, "{} of {}", taken, k);
  out.pop_back();
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
