// What the tiles of prompts read: the plan's prefill reader is asked, its lists are counted.
#include <algorithm>

#include "sparse/driver_impl.h"

namespace se {
namespace {

// What the lists of the listed row i let its tiles read.
KvCounters::PromptReads reads_of(
    const BlockList& b, int64_t i, int64_t past, int64_t tokens, const LayerKv& l) {
  const int64_t group = l.q_heads / l.kv_heads, tiles = (tokens * group + b.tile - 1) / b.tile;
  KvCounters::PromptReads sum;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t end = past + std::min(tokens, (t * b.tile + b.tile - 1) / group + 1);
    for (int64_t h = 0; h < l.kv_heads; ++h) {
      const int64_t item = b.first.ptr<int64_t>()[i] + h * tiles + t;
      const int64_t n = b.counts.ptr<int32_t>()[item];
      const int64_t last = n > 0 ? b.blocks.at<int32_t>(item)[n - 1] : -1;
      sum.read += n * b.block - (n > 0 ? std::max<int64_t>(0, (last + 1) * b.block - end) : 0);
      sum.seen += end;
    }
  }
  return sum;
}

}  // namespace

const BlockList* Driver::Impl::select_blocks(Family& f,
                                             int layer,
                                             const Present& present,
                                             const DeviceStep& s) {
  const Plan& plan = *f.plan;
  if (f.decode || fill || !plan.prefill || !plan.prefill_spec.narrows[size_t(layer)]) return nullptr;
  DeviceStep r =
      device_step(s.phase, s.rows, s.list, s.kv, s.codec, *plan.prefill, f.seqs, f.picked, scratch);
  for (size_t i = 0; i < f.seqs.size(); ++i) {
    const auto p = plan.prefill->params(facts(*f.seqs[i], false, step[size_t(f.ids[i])].last_chunk, 0));
    std::copy(p.begin(), p.end(), r.params.at<int32_t>(int64_t(i)));
  }
  plan.prefill->select(layer, model.layers[size_t(layer)], present, r);
  const KvIndex past = s.kv.past(layer);
  for (size_t i = 0; i < f.seqs.size(); ++i) {
    KvCounters& counters = f.seqs[i]->counters_;
    counters.prompt.resize(model.layers.size());
    const size_t row = size_t(f.ids[i]);
    const auto got = reads_of(f.picked.blocks,
                              int64_t(i),
                              past.tokens.ptr<int32_t>()[row],
                              packed.q_start[row + 1] - packed.q_start[row],
                              model.layers[size_t(layer)]);
    counters.prompt[size_t(layer)].read += got.read, counters.prompt[size_t(layer)].seen += got.seen;
  }
  return &f.picked.blocks;
}

}  // namespace se
