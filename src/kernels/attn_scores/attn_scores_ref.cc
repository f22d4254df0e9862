#include "kernels/attn_scores/attn_scores_ref.h"

#include <cmath>
#include <limits>
#include <vector>

namespace se::ref {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// values of those that count, `n` in all.
double reduce(Reduce how, const std::vector<double>& values, size_t n) {
  double sum = 0, top = -kInf;
  for (const double x : values) sum += x, top = std::max(top, x);
  return how == Reduce::kMax ? top : how == Reduce::kSum ? sum : sum / double(n);
}

// log of the softmax's denominator for one (query, head), over ordinals [from, to) up to `last`.
double log_sum(
    const TensorView& logits, size_t i, int64_t a, int64_t from, int64_t to, int64_t last, double scale) {
  double top = -kInf, sum = 0;
  for (int64_t c = from; c < to && c <= last; ++c)
    top = std::max(top, scale * double(*logits.at<float>(int64_t(i), a, c)));
  for (int64_t c = from; c < to && c <= last; ++c)
    sum += std::exp(scale * double(*logits.at<float>(int64_t(i), a, c)) - top);
  return top + std::log(sum);
}

}  // namespace

void attn_scores(const ScoreSpec& spec,
                 const TensorView& logits,
                 std::span<const int64_t> last,
                 float scale,
                 int kv_heads,
                 const TensorView& out) {
  const int64_t q_heads = logits.shape[1], n = logits.shape[2], heads = spec.per_kv_head ? kv_heads : 1;
  const int64_t lo = spec.skip_first, hi = n - spec.skip_last, group = q_heads / heads;
  std::vector<double> norm;  // [queries, q_heads]
  for (size_t i = 0; i < last.size(); ++i) {
    for (int64_t a = 0; a < q_heads; ++a)
      norm.push_back(log_sum(
          logits, i, a, spec.full_denominator ? 0 : lo, spec.full_denominator ? n : hi, last[i], scale));
  }
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t j = 0; j < n; ++j) {
      std::vector<double> of_heads;
      for (int64_t a = h * group; a < (h + 1) * group; ++a) {
        std::vector<double> of_queries;
        for (size_t i = 0; i < last.size(); ++i) {
          if (j < lo || j >= hi || j > last[i]) continue;
          const double z = *logits.at<float>(int64_t(i), a, j);
          of_queries.push_back(spec.prob ? std::exp(double(scale) * z - norm[i * size_t(q_heads) + size_t(a)])
                                         : z);
        }
        if (!of_queries.empty()) of_heads.push_back(reduce(spec.over_queries, of_queries, last.size()));
      }
      const double nothing = spec.prob ? 0 : -kInf;
      *out.at<float>(h, j) =
          float(of_heads.empty() ? nothing : reduce(spec.over_heads, of_heads, size_t(group)));
    }
  }
}

}  // namespace se::ref
