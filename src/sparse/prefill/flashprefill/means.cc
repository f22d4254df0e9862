#include "sparse/prefill/flashprefill/means.h"

#include "device/cpu/thread_pool.h"
#include "sparse/rows.h"

namespace se::flashprefill {
namespace {

constexpr int64_t kRuns = 64;  // decoded at a time

// Tokens [0, n) of x [tokens, heads, dim] stand at places from `place` on; those of full blocks are added to
// sums [heads, blocks, dim].
void add(
    const TensorView& x, int64_t n, int64_t place, int64_t block, int64_t blocks, const TensorView& sums) {
  const int64_t dim = sums.shape[2];
  for (int64_t t = 0; t < n && (place + t) / block < blocks; ++t) {
    for (int64_t h = 0; h < sums.shape[0]; ++h) {
      const float* from = x.at<float>(t, h);
      float* to = sums.at<float>(h, (place + t) / block);
      for (int64_t d = 0; d < dim; ++d) to[d] += from[d];
    }
  }
}

}  // namespace

void block_means(int layer,
                 int64_t row,
                 int64_t first,
                 const Present& present,
                 int64_t block,
                 int64_t blocks,
                 const TensorView& k,
                 const TensorView& v,
                 DeviceStep& s) {
  const KvIndex past = s.kv.past(layer);
  int64_t place = 0;
  const int64_t runs = past.counts.ptr<int32_t>()[row], start = past.start.ptr<int64_t>()[row];
  for (int64_t e = 0; e < runs; e += kRuns) {
    const Arena::Mark mark = s.scratch.mark();
    const int64_t m = std::min(kRuns, runs - e);
    int64_t begin = start + e;
    int32_t count = int32_t(m), tokens = 0;
    for (int64_t i = 0; i < m; ++i) tokens += int32_t(run_tokens(past.runs.ptr<int64_t>()[begin + i]));
    KvIndex some = past;  // one row of it
    some.start = TensorView::of(&begin, DType::kI64, {1}), some.offset = past.offset.slice(row, row + 1);
    some.counts = TensorView::of(&count, DType::kI32, {1});
    some.tokens = TensorView::of(&tokens, DType::kI32, {1});
    const StoredKv x = s.codec.values(layer, some, true, s);
    add(x.k, tokens, place, block, blocks, k), add(x.v, tokens, place, block, blocks, v);
    place += tokens;
    s.scratch.rewind(mark);
  }
  const int64_t rest = std::max<int64_t>(0, blocks * block - place);
  add(present.k.slice(first, first + rest), rest, place, block, blocks, k);
  add(present.v.slice(first, first + rest), rest, place, block, blocks, v);
  for (const TensorView& t : {k, v}) {
    for (int64_t h = 0; h < t.shape[0]; ++h) {
      float* x = t.at<float>(h);
      for (int64_t i = 0; i < blocks * t.shape[2]; ++i) x[i] /= float(block);
    }
  }
}

}  // namespace se::flashprefill
