#include "sparse/keep_best.h"

#include <algorithm>
#include <cmath>

#include "kernels/topk/topk.h"

namespace se {
namespace {

// Tokens that stay or go together: list places [begin, end).
struct Item {
  int32_t begin = 0, end = 0;
  float score = 0;
};

// Score descending, then lower place; NaN last (as top_k ranks).
bool ranks_before(const Item& a, const Item& b) {
  const bool a_nan = std::isnan(a.score), b_nan = std::isnan(b.score);
  if (a_nan != b_nan) return b_nan;
  if (!a_nan && a.score != b.score) return a.score > b.score;
  return a.begin < b.begin;
}

// The best items, until they hold `room` tokens or more.
std::vector<Item> best(std::vector<Item> items, int64_t room) {
  std::vector<Item> taken;
  if (items.empty() || room <= 0) return taken;
  const int32_t size = items[0].end - items[0].begin;
  if (std::all_of(items.begin(), items.end(), [&](const Item& i) { return i.end - i.begin == size; })) {
    std::vector<float> scores;
    for (const Item& i : items) scores.push_back(i.score);
    std::vector<int32_t> chosen;
    top_k(scores, (room + size - 1) / size, chosen);
    for (int32_t i : chosen) taken.push_back(items[size_t(i)]);
    return taken;
  }
  std::sort(items.begin(), items.end(), ranks_before);
  for (const Item& i : items) {
    if (room <= 0) break;
    taken.push_back(i);
    room -= i.end - i.begin;
  }
  return taken;
}

}  // namespace

void keep_best(const KeepInput& in,
               std::span<const float> score,
               int64_t sink,
               int64_t recent,
               int64_t budget,
               int pool,
               KeepList& out) {
  const int64_t n = in.in.counts.ptr<int32_t>()[0];
  const std::span<const int32_t> ordinal(in.in.ordinals.ptr<int32_t>(), size_t(n));
  SE_CHECK(out.ordinals.numel() >= n, "keep_best: room for {} of {} ordinals", out.ordinals.numel(), n);
  const int64_t lo = std::min(sink, n), hi = std::max(lo, n - recent);  // the middle
  std::vector<uint8_t> kept(size_t(n), n <= budget ? 1 : 0);

  if (n > budget) {
    std::vector<float> votes(score.empty() ? 0 : size_t(hi - lo)), pooled(votes.size());
    for (size_t i = 0; i < votes.size(); ++i) {
      const size_t o = size_t(ordinal[size_t(lo) + i]);
      SE_CHECK(o < score.size(), "keep_best: ordinal {} of {} scores", o, score.size());
      votes[i] = score[o];
    }
    if (pool > 1) max_pool(votes, pool, pooled), votes.swap(pooled);

    std::vector<Item> items;  // unprotected ones; protected ones are kept at once
    int64_t room = budget;
    for (int64_t begin = 0, end = 0; begin < n; begin = end) {
      const int64_t o = ordinal[size_t(begin)], group = o < in.encoded ? o / in.grain : -1;
      for (end = begin + 1; group >= 0 && end < n && ordinal[size_t(end)] < in.encoded &&
                            ordinal[size_t(end)] / in.grain == group;)
        ++end;
      const bool tail = o >= in.encoded && o < in.encoded + in.tail;
      if (tail || begin < lo || end > hi) {
        std::fill(kept.begin() + begin, kept.begin() + end, uint8_t(1));
        room -= end - begin;
      } else if (!votes.empty()) {
        float sum = 0;
        for (int64_t i = begin; i < end; ++i) sum += votes[size_t(i - lo)];
        items.push_back({int32_t(begin), int32_t(end), sum / float(end - begin)});
      }
    }
    for (const Item& i : best(std::move(items), room)) {
      std::fill(kept.begin() + i.begin, kept.begin() + i.end, uint8_t(1));
    }
  }

  int32_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (kept[size_t(i)]) out.ordinals.ptr<int32_t>()[count++] = ordinal[size_t(i)];
  }
  out.counts.ptr<int32_t>()[0] = count;
}

}  // namespace se
