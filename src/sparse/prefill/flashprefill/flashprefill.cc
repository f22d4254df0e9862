#include "sparse/prefill/flashprefill/flashprefill.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/fmt.h"
#include "device/cpu/thread_pool.h"
#include "sparse/prefill/flashprefill/choose.h"
#include "sparse/prefill/flashprefill/energies.h"
#include "sparse/prefill/flashprefill/means.h"
#include "sparse/rows.h"

namespace se {
namespace flashprefill {
namespace {

// A listed row at work.
struct Row {
  int64_t row = 0, token = 0, tokens = 0, past = 0;  // token: its first one; past: tokens before it
  int64_t tiles = 0, narrow = 0, first = 0;  // of a KV head; those that may be narrowed; its first item
  int64_t full = 0;                          // blocks, past and present
  bool scored = false;
  float* turned = nullptr;  // mean keys [kv_heads, dim, stride]
};
struct Item {
  const Row* row = nullptr;
  int64_t tile = 0, at = 0;
  int head = 0;
};

class FlashPrefill final : public PrefillReader {
 public:
  void visit(FieldVisitor& f) override {
    f({.name = "threshold",
       .help = "blocks of at least this share of the largest energy are read; 0: all, larger: sparser",
       .affects = Affects::kState,
       .min = 0,
       .max = 1},
      c_.threshold);
    f({.name = "block",
       .help = "keys that are scored and read together",
       .affects = Affects::kState,
       .min = 16,
       .max = 1024,
       .power_of_two = true},
      c_.block);
    f({.name = "sink", .help = "first blocks always read", .affects = Affects::kState, .max = 1 << 20},
      c_.sink);
    f({.name = "window",
       .help = "blocks always read up to that of a tile's first query, its own included",
       .affects = Affects::kState,
       .min = 1,
       .max = 1 << 20},
      c_.window);
    f({.name = "last",
       .help = "tiles of queries at the prompt's end that read all",
       .affects = Affects::kState,
       .max = 1 << 20},
      c_.last);
    f({.name = "correction",
       .help = "blocks left out count as their mean key and value",
       .affects = Affects::kState},
      c_.correction);
    f({.name = "min_len",
       .help = "queries that see up to so many tokens read all",
       .affects = Affects::kState,
       .max = 1 << 24},
      c_.min_len);
    f({.name = "dense_layers",
       .help = "leading layers that read all",
       .affects = Affects::kState,
       .max = 1024},
      c_.dense_layers);
  }
  std::string family() const override {
    return format("flashprefill({},{},{},{},{},{},{})",
                  c_.threshold,
                  c_.block,
                  c_.sink,
                  c_.window,
                  c_.correction,
                  c_.min_len,
                  c_.dense_layers);
  }
  Status accepts(const ModelKv& m) const override {
    if (!m.layers[0].latent()) return ok();
    return unsupported(
        "flashprefill scores mean keys and values by KV head, but this model's latent layers have one key "
        "for "
        "all heads and no value of its own; leave it out");
  }
  PrefillSpec spec(const ModelKv& m, const CodecSpec&) const override {
    PrefillSpec s;
    s.chunk = kChunk;
    for (int l = 0; l < int(m.layers.size()); ++l)
      s.narrows.push_back(l >= c_.dense_layers && m.layers[size_t(l)].kind == LayerKind::kFull);
    return s;
  }
  // Only the end of a prompt is read densely by `last`: what ends with another chunk is not an end.
  std::array<int32_t, 8> params(const SeqView& q) const override {
    return {int32_t(q.last_chunk ? c_.last : 0)};
  }

  void select(int layer, const LayerKv& l, const Present& x, DeviceStep& s) const override {
    const int64_t heads = x.k.shape[1], dim = x.k.shape[2], group = x.q.shape[1] / heads;
    BlockList& list = s.picked.blocks;
    list = {};
    list.block = int(c_.block), list.tile = kTile;
    const std::span<Row> rows = size_up(s.kv.past(layer), group, heads, s);
    list.first = s.scratch.take(DType::kI64, {int64_t(rows.size())});
    int64_t items = 0, most = 1, cap = 1;
    for (size_t i = 0; i < rows.size(); ++i) {
      const Row& r = rows[i];
      list.first.ptr<int64_t>()[i] = r.first;
      items += r.tiles * heads;
      most = std::max(most, r.full), cap = std::max(cap, (r.past + r.tokens - 1) / c_.block + 1);
    }
    list.counts = s.scratch.take(DType::kI32, {items});
    list.blocks = s.scratch.take(DType::kI32, {items, cap});
    list.mean_counts = s.scratch.take(DType::kI32, {items});
    list.mean_blocks = s.scratch.take(DType::kI32, {items, cap});
    list.mean_k = s.scratch.take(DType::kF32, {int64_t(rows.size()), heads, most, dim});
    list.mean_v = s.scratch.take(DType::kF32, {int64_t(rows.size()), heads, most, x.v.shape[2]});
    const int64_t stride = (most + kMeanLanes - 1) / kMeanLanes * kMeanLanes;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].scored) make_means(layer, int64_t(i), x, stride, rows[i], list, s);
    }
    fill_lists(x, rows, group, stride, l.scale, list, s);
  }

 private:
  Rule rule() const { return {c_.threshold, c_.sink, c_.window, c_.block, c_.correction}; }

  // How many tokens, tiles and full blocks each listed row has, and whether any of its tiles is narrowed.
  std::span<Row> size_up(const KvIndex& past, int64_t group, int64_t heads, DeviceStep& s) const {
    const std::span<Row> rows = s.scratch.take<Row>(*s.list.n.ptr<int32_t>());
    int64_t items = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      Row& r = rows[i] = {};
      r.row = s.list.ids.ptr<int32_t>()[i];
      r.token = s.rows.q_start.ptr<int32_t>()[r.row];
      r.tokens = s.rows.q_start.ptr<int32_t>()[r.row + 1] - r.token;
      r.past = tokens_of(past, r.row);
      r.tiles = (r.tokens * group + kTile - 1) / kTile;
      r.narrow = std::max<int64_t>(0, r.tiles - *s.params.at<int32_t>(int64_t(i), 0));
      r.full = (r.past + r.tokens) / c_.block;
      r.scored = r.narrow > 0 && r.full > 0 && (s.force_select || r.past + r.tokens > c_.min_len);
      r.first = items, items += r.tiles * heads;
    }
    return rows;
  }

  void make_means(int layer,
                  int64_t i,
                  const Present& x,
                  int64_t stride,
                  Row& r,
                  const BlockList& list,
                  DeviceStep& s) const {
    const TensorView k = list.mean_k.index(i), v = list.mean_v.index(i);
    for (const TensorView& t : {k, v}) std::memset(t.data, 0, size_t(t.numel()) * 4);
    block_means(layer, r.row, r.token, x, c_.block, r.full, k, v, s);
    const int64_t heads = k.shape[0], dim = k.shape[2];
    r.turned = s.scratch.take<float>(heads * dim * stride).data();
    std::fill(r.turned, r.turned + heads * dim * stride, 0.f);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t b = 0; b < r.full; ++b) {
        const float* mean = k.at<float>(h, b);
        for (int64_t d = 0; d < dim; ++d) r.turned[(h * dim + d) * stride + b] = mean[d];
      }
    }
  }

  void fill_lists(const Present& x,
                  std::span<const Row> rows,
                  int64_t group,
                  int64_t stride,
                  float scale,
                  const BlockList& list,
                  DeviceStep& s) const {
    const int64_t heads = x.k.shape[1], dim = x.k.shape[2], n = list.counts.numel();
    const std::span<Item> items = s.scratch.take<Item>(n);
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int64_t at = 0; at < rows[i].tiles * heads; ++at)
        items[size_t(rows[i].first + at)] = {
            &rows[i], at % rows[i].tiles, rows[i].first + at, int(at / rows[i].tiles)};
    }
    const int64_t floats = (kTile + 1) * stride;
    const std::span<float> memory = s.scratch.take<float>(floats * s.stream.pool().threads());
    const Energies energies_of = energies();
    s.stream.pool().run(n, [&](int64_t i, int thread) {
      const Item& item = items[size_t(i)];
      const Row& r = *item.row;
      const float* q[kTile];
      int32_t seen[kTile];
      Tile tile{q, 0, item.tile * kTile, group, r.past, int(dim), scale};
      tile.rows = std::min<int64_t>(kTile, r.tokens * group - tile.packed);
      const int64_t active = tile.active(c_.block);
      for (int64_t p = 0; p < tile.rows; ++p) {
        const int64_t packed = tile.packed + p;
        q[p] = x.q.at<float>(r.token + packed / group, item.head * group + packed % group);
        seen[p] = int32_t(std::min(active, tile.place(p) / c_.block + 1));
      }
      int32_t* kept = list.blocks.at<int32_t>(i);
      Counts counts;
      if (!r.scored || item.tile >= r.narrow || (!s.force_select && tile.high() < c_.min_len)) {
        counts = keep_all(rule(), tile, kept);
      } else {
        float *logits = memory.data() + thread * floats, *energy = logits + kTile * stride;
        energies_of(q,
                    seen,
                    int(tile.rows),
                    r.turned + item.head * dim * stride,
                    stride,
                    int(active),
                    int(dim),
                    scale,
                    logits,
                    energy);
        counts = choose(rule(), tile, energy, kept, list.mean_blocks.at<int32_t>(i));
      }
      list.counts.ptr<int32_t>()[i] = counts.kept, list.mean_counts.ptr<int32_t>()[i] = counts.means;
    });
  }

  Config c_;
};

}  // namespace
}  // namespace flashprefill

const StageEntry stage_prefill_flashprefill = {
    Axis::kPrefill,
    "flashprefill",
    "blocks of keys whose mean promises a tile of queries most",
    "Fan et al. 2026",
    [] { return std::unique_ptr<Stage>(std::make_unique<flashprefill::FlashPrefill>()); }};

}  // namespace se
