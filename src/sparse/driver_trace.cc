// What decode rows read, for who looks into a plan. Slow paths, taken only while a trace is set.
#include <cmath>

#include "kernels/attention/attention.h"
#include "sparse/driver_impl.h"

namespace se {
namespace {

// Logical positions of the tokens that a row reads in a layer, in the order of the view's parts: picked or
// past, then the ring.
std::vector<int32_t> positions_read(const Family& f, int layer, int row, const KvTable& table) {
  const int64_t past = f.tables->past_tokens(layer, row), tail = f.tables->tail_tokens(layer, row);
  const int64_t before = int64_t(table.positions.size()) - 1;  // the row's own token is the last
  const bool narrows = f.plan->read && f.plan->read_spec.source[size_t(layer)] >= 0;
  std::vector<int32_t> out;
  if (narrows) {
    const KvIndex& index = f.picked.index;
    const int32_t* ordinals = f.picked.ordinals.at<int32_t>(row);
    const int64_t start = *index.start.at<int64_t>(row);
    for (int32_t r = 0; r < *index.counts.at<int32_t>(row); ++r) {
      const int64_t n = run_tokens(index.runs.ptr<int64_t>()[start + r]);
      for (int64_t t = 0; t < n; ++t) out.push_back(table.positions[size_t(ordinals[r] + t)]);
    }
  } else {
    out.assign(table.positions.begin() + (before - past - tail), table.positions.begin() + (before - tail));
  }
  out.insert(out.end(), table.positions.begin() + (before - tail), table.positions.begin() + before);
  return out;
}

// Probabilities of the tokens of a view's parts for one row, mean over the query heads. logits: f32 by part
// [tokens, q_heads, places].
std::vector<float> mean_weights(const AttentionView& view,
                                std::span<const TensorView> logits,
                                int row,
                                int64_t token,
                                float scale,
                                const TensorView& lse) {
  std::vector<float> out;
  const int64_t heads = lse.shape[1];
  for (int p = 0; p < view.n; ++p) {
    const KvIndex& index = view.parts[size_t(p)].index;
    const int64_t start = *index.start.at<int64_t>(row);
    for (int32_t r = 0; r < *index.counts.at<int32_t>(row); ++r) {
      const int64_t n = run_tokens(index.runs.ptr<int64_t>()[start + r]);
      for (int64_t t = 0; t < n; ++t) {
        double sum = 0;
        for (int64_t h = 0; h < heads; ++h) {
          const float x = logits[size_t(p)].at<float>(token, h)[int64_t(r) * index.unit + t];
          sum += std::exp(double(scale) * double(x) - double(lse.at<float>(token)[h]));
        }
        out.push_back(float(sum / double(heads)));
      }
    }
  }
  return out;
}

}  // namespace

void Driver::trace(std::function<void(const KvRead&)> on_read, bool weights) {
  impl_->on_read = std::move(on_read);
  impl_->trace_weights = weights;
}

void Driver::Impl::trace_reads(
    Family& f, int layer, const AttentionView& view, const Present& present, const TensorView& lse) {
  const auto mark = scratch.mark();
  std::vector<TensorView> logits;
  AttendArgs a;
  a.rows = &packed.view, a.list = f.list, a.q = present.q, a.scratch = &scratch;
  for (int p = 0; trace_weights && p < view.n; ++p) {
    const AttentionPart& part = view.parts[size_t(p)];
    int64_t runs = 0;
    for (int32_t row : f.ids) runs = std::max<int64_t>(runs, *part.index.counts.at<int32_t>(row));
    a.logits =
        scratch.take(DType::kF32, {tokens, lse.shape[1], std::max<int64_t>(1, runs * part.index.unit)});
    SE_CHECK(part.logits != nullptr, "a part without logits cannot be traced");
    if (runs > 0) part.logits(a, part, stream);
    logits.push_back(a.logits);
  }
  for (size_t i = 0; i < f.seqs.size(); ++i) {
    const int32_t row = f.ids[i];
    const KvSequence& kv = *f.seqs[i]->kv_;
    const std::vector<int32_t> positions =
        positions_read(f, layer, row, kv.table(kv.layout().group_of(layer)));
    std::vector<float> weights;
    if (trace_weights) {
      weights = mean_weights(
          view, logits, row, packed.q_start[size_t(row)], model.layers[size_t(layer)].scale, lse);
      SE_CHECK(
          weights.size() == positions.size(), "{} weights of {} tokens", weights.size(), positions.size());
    }
    on_read({f.seqs[i], layer, positions, weights});
  }
  scratch.rewind(mark);
}

}  // namespace se
