#include "kernels/attn_scores/attn_scores.h"

#include <algorithm>
#include <limits>

#include "device/cpu/isa.h"
#include "device/cpu/thread_pool.h"
#include "kernels/attn_scores/core.h"

namespace se {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr int64_t kChunk = 4096;  // ordinals per item where heads are reduced

struct Pass {
  const ScoreSpec& spec;
  const TensorView& logits;
  std::span<const int64_t> last;
  float scale;
  const cpu::ScoresCore& core;
  int64_t ordinals, lo, hi;  // candidates [lo, hi)

  float nothing() const { return spec.prob ? 0.f : kMinusInf; }
  // The candidates that query i sees: [lo, seen_end(i)).
  int64_t seen_end(size_t i) const { return std::clamp(last[i] + 1, lo, hi); }
  float* row(int64_t query, int64_t head) const { return logits.at<float>(query, head); }
};

// Logits of one (query, head) to probabilities, in place, at the candidates that are seen.
void to_probabilities(const Pass& p, size_t i, float* x) {
  const int64_t end = p.seen_end(i);
  if (end <= p.lo) return;
  const int64_t from = p.spec.full_denominator ? 0 : p.lo;
  const int64_t to = p.spec.full_denominator ? std::min(p.last[i] + 1, p.ordinals) : end;
  const float shift = p.core.largest(x + from, to - from) * p.scale;
  const double sum = p.core.exp_sum(x + from, to - from, p.scale, shift);
  p.core.divide(x + p.lo, end - p.lo, float(sum));
}

void fold(const Pass& p, Reduce how, float* to, const float* x, int64_t n) {
  if (how == Reduce::kMax)
    p.core.raise(to, x, n);
  else
    p.core.add(to, x, n);
}

// Reduces the queries of one head into the head's row of query 0.
void reduce_queries(const Pass& p, int64_t head) {
  const size_t n = p.last.size();
  float* to = p.row(0, head);
  int64_t done = p.lo;  // candidates in [lo, done) hold a result
  for (size_t i = 0; i < n; ++i) {
    float* x = p.row(int64_t(i), head);
    if (p.spec.prob) to_probabilities(p, i, x);
    const int64_t end = p.seen_end(i);
    if (i > 0) {
      fold(p, p.spec.over_queries, to + p.lo, x + p.lo, std::min(end, done) - p.lo);
      if (end > done) std::copy(x + done, x + end, to + done);
    }
    done = std::max(done, end);
  }
  if (p.spec.over_queries == Reduce::kMean) p.core.divide(to + p.lo, done - p.lo, float(n));
  std::fill(to, to + p.lo, p.nothing());
  std::fill(to + done, to + p.ordinals, p.nothing());
}

}  // namespace

void attn_scores(const ScoreSpec& spec,
                 const TensorView& logits,
                 std::span<const int64_t> last,
                 float scale,
                 int kv_heads,
                 const TensorView& out,
                 Stream& stream) {
  SE_CHECK(logits.rank == 3 && logits.dtype == DType::kF32 && logits.stride[2] == 4 && kv_heads > 0 &&
               logits.shape[1] % kv_heads == 0 && logits.shape[0] == int64_t(last.size()),
           "logits {} of {} queries: expected f32 [queries, a multiple of {}, ordinals]",
           to_string(logits),
           last.size(),
           kv_heads);
  const int64_t q_heads = logits.shape[1], ordinals = logits.shape[2],
                heads = spec.per_kv_head ? kv_heads : 1;
  SE_CHECK(out.rank == 2 && out.dtype == DType::kF32 && out.shape[0] == heads && out.shape[1] == ordinals &&
               out.stride[1] == 4,
           "scores {}: expected f32 [{}, {}]",
           to_string(out),
           heads,
           ordinals);
  Pass p{spec,
         logits,
         last,
         scale,
         cpu::isa() >= cpu::Isa::kAvx2 ? cpu::kScoresAvx2 : cpu::kScoresBaseline,
         ordinals,
         0,
         0};
  p.lo = std::clamp<int64_t>(spec.skip_first, 0, ordinals);
  p.hi = std::max(p.lo, ordinals - std::max(spec.skip_last, 0));
  if (last.empty()) {
    for (int64_t h = 0; h < heads; ++h) std::fill_n(out.at<float>(h), ordinals, p.nothing());
    return;
  }
  stream.pool().run(q_heads, [&p](int64_t head, int) { reduce_queries(p, head); });

  const int64_t group = q_heads / heads, chunks = (ordinals + kChunk - 1) / kChunk;
  stream.pool().run(heads * chunks, [&](int64_t item, int) {
    const int64_t h = item / chunks, begin = item % chunks * kChunk, n = std::min(kChunk, ordinals - begin);
    float* to = out.at<float>(h) + begin;
    std::copy_n(p.row(0, h * group) + begin, n, to);
    for (int64_t a = h * group + 1; a < (h + 1) * group; ++a)
      fold(p, spec.over_heads, to, p.row(0, a) + begin, n);
    if (spec.over_heads == Reduce::kMean) p.core.divide(to, n, float(group));
  });
}

}  // namespace se
