#include "kernels/topk/topk.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"

namespace se {
namespace {

// Ascending keys are descending ranks: the best score has the smallest key. NaN, of either sign, is last.
uint32_t key_of(float score) {
  const uint32_t u = std::bit_cast<uint32_t>(score + 0.f);  // -0 + 0 is +0
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0xffffffffu;
  return u & 0x80000000u ? u : 0x7fffffffu - u;
}

// The key of the k-th best, and how many of those with that very key belong to the k best.
struct Threshold {
  uint32_t key = 0;
  int64_t ties = 0;
};

// Radix select from the top digit down: each pass counts the digits of the keys that agree with what is
// known.
Threshold find_threshold(std::span<const float> score, int64_t k) {
  Threshold t{0, k};
  uint32_t known = 0;  // mask
  for (const auto& [shift, bits] : {std::pair(21, 11), std::pair(10, 11), std::pair(0, 10)}) {
    std::array<int64_t, 2048> count{};
    const uint32_t digits = (1u << bits) - 1;
    for (const float s : score) {
      const uint32_t key = key_of(s);
      if (((key ^ t.key) & known) == 0) ++count[key >> shift & digits];
    }
    uint32_t digit = 0;
    while (count[digit] < t.ties) t.ties -= count[digit++];
    t.key |= digit << shift;
    known |= digits << shift;
  }
  return t;
}

}  // namespace

void top_k(std::span<const float> score, int64_t k, std::vector<int32_t>& out) {
  out.clear();
  const int64_t n = int64_t(score.size());
  if (k <= 0) return;
  k = std::min(k, n);
  out.reserve(size_t(k));
  if (k == n) {
    for (int64_t i = 0; i < n; ++i) out.push_back(int32_t(i));
    return;
  }
  const Threshold t = find_threshold(score, k);
  for (int64_t i = 0, ties = t.ties; i < n; ++i) {
    const uint32_t key = key_of(score[size_t(i)]);
    if (key < t.key || (key == t.key && ties-- > 0)) out.push_back(int32_t(i));
  }
  SE_DCHECK(int64_t(out.size()) == k, "{} of {}", out.size(), k);
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
