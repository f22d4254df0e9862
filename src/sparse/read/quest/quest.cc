#include "sparse/read/quest/quest.h"

#include <bit>
#include <span>

#include "device/cpu/thread_pool.h"
#include "kernels/topk/topk.h"
#include "sparse/read/quest/bounds.h"
#include "sparse/rows.h"

namespace se {
namespace quest {
namespace {

enum : int { kLo, kHi };  // components
// Units that one work item scores: a few items a thread, and no fewer than are worth one. What is asked for
// early ends with the item.
constexpr int64_t kShares = 4, kLeastUnits = 64, kMostUnits = 512;
// One row at work. Its stored units: `full` ones, which have bounds, then perhaps one that is not full yet.
struct Row {
  int64_t row = 0, full = 0, rest = 0,
          choose = 0;  // rest: tokens of the last unit; choose: full units to read
  bool scored = false;
  float *score = nullptr, *query = nullptr;  // [full]; SplitQuery::data
};
// Where a row's units lie: page table entry and item in its page. Sizes are powers of two; a division for
// every unit took a quarter of what scoring it takes.
struct Places {
  int page, per_page;  // log2 of the tokens of a page; of its units
  Places(const KvIndex& past, int64_t unit)
      : page(std::countr_zero(uint64_t(past.page))), per_page(page - std::countr_zero(uint64_t(unit))) {}
  int64_t entry(int64_t u) const { return u >> per_page; }
  int64_t item(int64_t u) const { return u & ((int64_t{1} << per_page) - 1); }
};
struct Work {  // units [begin, end) of a row
  const Row* row = nullptr;
  int64_t begin = 0, end = 0;
};

class Quest final : public Reader {
 public:
  void visit(FieldVisitor& f) override {
    f({.name = "budget",
       .help = "tokens read per step and layer, in units however full",
       .affects = Affects::kReads,
       .min = 1,
       .max = 1 << 24},
      c_.budget);
    f({.name = "unit",
       .help = "tokens that are scored and read together",
       .affects = Affects::kReads,
       .min = 1,
       .max = 1024,
       .power_of_two = true},
      c_.unit);
    f({.name = "dense_layers",
       .help = "leading layers that read all",
       .affects = Affects::kReads,
       .max = 1024},
      c_.dense_layers);
  }
  std::string family() const override { return format("quest({},{},{})", c_.unit, c_.dense_layers, cap()); }
  std::array<int32_t, 8> params(const SeqView&) const override { return {int32_t(units())}; }

  ReaderSpec spec(const ModelKv& m, const CodecSpec& codec) const override {
    ReaderSpec s;
    s.unit = int(c_.unit), s.cap = cap();
    std::vector<int> layers;  // that select
    for (int l = 0; l < int(m.layers.size()); ++l) {
      const bool selects = l >= c_.dense_layers && m.layers[size_t(l)].kind == LayerKind::kFull;
      s.source.push_back(selects ? l : -1);
      if (selects) layers.push_back(l);
    }
    if (codec.bounds_per == c_.unit || layers.empty())
      return s;  // the codec's own bounds serve: nothing to store
    s.index_unit = s.unit;
    for (const char* name : {"key_lo", "key_hi"}) {
      s.components.push_back({name, Block::kIndex, s.unit, m.dtype, {m.layers[0].k_dim}, true, layers, {}});
    }
    return s;
  }

  void index(int layer, const Units& u, DeviceStep& s) const override {
    const TensorView lo = s.kv.plane(*this, layer, kLo), hi = s.kv.plane(*this, layer, kHi);
    constexpr int64_t kUnits = 256;  // decoded at a time
    for (int64_t i = 0; i < u.n; i += kUnits) {
      const Arena::Mark mark = s.scratch.mark();
      index_some(layer, u, i, std::min(u.n, int(i + kUnits)), lo, hi, s);
      s.scratch.rewind(mark);
    }
  }

  void select(int layer, const Present& x, DeviceStep& s) const override {
    const Arena::Mark mark = s.scratch.mark();
    const KvIndex past = s.kv.past(layer);
    const std::span<Row> rows = size_up(past, s);
    score(layer, x, rows, past, s);
    s.stream.pool().run(int64_t(rows.size()), [&](int64_t i, int) { emit(rows[size_t(i)], past, s.picked); });
    s.scratch.rewind(mark);
  }

  int64_t read_tokens(int64_t paged) const override { return std::min(paged, units() * c_.unit); }

 private:
  int64_t units() const { return std::max<int64_t>(3, c_.budget / c_.unit); }
  int64_t cap() const { return int64_t(std::bit_ceil(uint64_t(units()))); }  // close budgets share launches

  void index_some(int layer,
                  const Units& u,
                  int64_t begin,
                  int64_t end,
                  const TensorView& lo,
                  const TensorView& hi,
                  DeviceStep& s) const {
    KvIndex payload = u.payload;  // rows [begin, end) of it
    payload.start = payload.start.slice(begin, end), payload.offset = payload.offset.slice(begin, end);
    payload.counts = payload.counts.slice(begin, end), payload.tokens = payload.tokens.slice(begin, end);
    const TensorView k = s.codec.values(layer, payload, false, s).k;
    const int64_t heads = k.shape[1], dim = k.shape[2];
    SE_CHECK(k.shape[0] == (end - begin) * c_.unit,
             "{} tokens in {} units of {}",
             k.shape[0],
             end - begin,
             c_.unit);
    s.stream.pool().run(end - begin, [&](int64_t i, int) {
      for_each_run(u.index, begin + i, [&](int64_t slot, int64_t) {
        const int64_t page = u.index.page, id = slot / page, item = slot % page / c_.unit;
        for (int64_t h = 0; h < heads; ++h)
          bound_keys(k.at<float>(i * c_.unit, h),
                     heads * dim,
                     c_.unit,
                     dim,
                     lo.dtype,
                     lo.at<void>(id, item, h),
                     hi.at<void>(id, item, h));
      });
    });
  }

  // Of all heads, in ascending order.
  static const float* mean_query(const TensorView& q, int64_t token, Arena& scratch) {
    const int64_t heads = q.shape[1], dim = q.shape[2];
    float* mean = scratch.take<float>(dim).data();
    for (int64_t d = 0; d < dim; ++d) {
      float sum = 0;
      for (int64_t h = 0; h < heads; ++h) sum += *q.at<float>(token, h, d);
      mean[d] = sum / float(heads);
    }
    return mean;
  }

  // How many units each listed row holds and how many of them it may read.
  std::span<Row> size_up(const KvIndex& past, DeviceStep& s) const {
    const std::span<Row> rows = s.scratch.take<Row>(*s.list.n.ptr<int32_t>());
    for (size_t i = 0; i < rows.size(); ++i) {
      Row& r = rows[i] = {};
      r.row = s.list.ids.ptr<int32_t>()[i];
      const int64_t tokens = tokens_of(past, r.row), units = *s.params.at<int32_t>(i, 0);
      r.full = tokens / c_.unit, r.rest = tokens % c_.unit;
      // One unit of the budget holds the newest token, which is the present: the last stored one if it is not
      // full (it has no bounds and is always read), else one that the present begins.
      r.choose = std::min(r.full, units - 1);
      r.scored = r.full > r.choose || (s.force_select && r.full > 0);
    }
    return rows;
  }

  void score(int layer, const Present& x, std::span<Row> rows, const KvIndex& past, DeviceStep& s) const {
    // One key for all heads (MLA): the mean query scores, as 20 bounds a unit would cost what reading it does
    // (methods-dynamic.md 2.2).
    const bool mean = x.v_in_k();
    const int64_t heads = mean ? 1 : x.q.shape[1], dim = x.q.shape[2];
    int64_t n = 0;
    for (Row& r : rows) {
      if (!r.scored) continue;
      r.score = s.scratch.take<float>(r.full).data();
      r.query = s.scratch.take<float>(heads * split_floats(dim)).data();
      const int64_t token = s.rows.q_start.ptr<int32_t>()[r.row];
      split_query(mean ? mean_query(x.q, token, s.scratch) : x.q.at<float>(token), dim, heads, dim, r.query);
      n += r.full;
    }
    if (n == 0) return;
    const int64_t each =
        std::clamp((n - 1) / (kShares * s.stream.pool().threads()) + 1, kLeastUnits, kMostUnits);
    n = 0;
    for (const Row& r : rows) n += r.scored ? (r.full + each - 1) / each : 0;
    const std::span<Work> work = s.scratch.take<Work>(n);
    n = 0;
    for (const Row& r : rows) {
      for (int64_t u = 0; r.scored && u < r.full; u += each)
        work[size_t(n++)] = {&r, u, std::min(r.full, u + each)};
    }

    const TensorView lo = s.kv.plane(*this, layer, kLo), hi = s.kv.plane(*this, layer, kHi);
    const KeyBounds b =
        lo.empty() ? s.codec.bounds(layer, s.kv) : KeyBounds{lo, hi, {}, 0, int(c_.unit), Block::kIndex};
    SE_CHECK(b.per == c_.unit, "bounds of {} tokens for units of {}", b.per, c_.unit);
    const bool steps = b.hi.empty();
    const TensorView& second = steps ? b.step : b.hi;
    SE_CHECK(second.dtype == (steps ? DType::kF16 : b.lo.dtype),
             "bounds {} and {}",
             to_string(b.lo),
             to_string(second));
    const BoundsFormat format{narrow_of(b.lo.dtype),
                              narrow_of(second.dtype),
                              b.lo.stride[2],
                              second.stride[2],
                              steps ? float(b.levels) : 0};
    const int kv_heads = int(b.lo.shape[2]);
    const ScoreUnits score_all = score_units(int(dim));
    const KvIndex table = s.kv.past(layer, b.block);
    const Places places(past, c_.unit);
    s.stream.pool().run(n, [&](int64_t w, int) {
      const Row& r = *work[size_t(w)].row;
      const int64_t* runs = table.runs.ptr<int64_t>() + table.start.ptr<int64_t>()[r.row];
      const int64_t offset = table.offset.ptr<int64_t>()[r.row];
      const int64_t begin = work[size_t(w)].begin, end = work[size_t(w)].end;
      UnitBounds units[kMostUnits];
      for (int64_t u = begin; u < end; ++u) {
        const int64_t id = (run_slot(runs[places.entry(u)]) + offset) >> places.page;
        units[u - begin] = {b.lo.at<char>(id, places.item(u)), second.at<char>(id, places.item(u))};
      }
      score_all({r.query, kv_heads, int(heads) / kv_heads, int(dim)},
                format,
                units,
                int(end - begin),
                r.score + begin);
    });
  }

  // The chosen units of a row, ascending, then the one that is not full.
  void emit(const Row& r, const KvIndex& past, KvPicked& picked) const {
    std::vector<int32_t> chosen;
    if (r.scored) {
      top_k({r.score, size_t(r.full)}, r.choose, chosen);
    } else {
      for (int32_t u = 0; u < r.full; ++u) chosen.push_back(u);
    }
    if (r.rest > 0) chosen.push_back(int32_t(r.full));
    SE_CHECK(
        int64_t(chosen.size()) <= picked.index.cap, "{} units for {} runs", chosen.size(), picked.index.cap);
    const int64_t* from = past.runs.ptr<int64_t>() + past.start.ptr<int64_t>()[r.row];
    int64_t* runs = picked.index.runs.ptr<int64_t>() + picked.index.start.ptr<int64_t>()[r.row];
    int32_t* ordinals = picked.ordinals.at<int32_t>(r.row);
    const Places places(past, c_.unit);
    for (size_t i = 0; i < chosen.size(); ++i) {
      const int64_t u = chosen[i], slot = run_slot(from[places.entry(u)]) + places.item(u) * c_.unit;
      runs[i] = run(slot, u < r.full ? c_.unit : r.rest);
      ordinals[i] = int32_t(u * c_.unit);
    }
    picked.index.counts.ptr<int32_t>()[r.row] = int32_t(chosen.size());
    picked.index.tokens.ptr<int32_t>()[r.row] =
        int32_t((int64_t(chosen.size()) - (r.rest > 0)) * c_.unit + r.rest);
  }

  Config c_;
};

}  // namespace
}  // namespace quest

const StageEntry stage_read_quest = {
    Axis::kRead, "quest", "units of tokens whose key bounds promise most", "Tang et al. 2024", [] {
      return std::unique_ptr<Stage>(std::make_unique<quest::Quest>());
    }};

}  // namespace se
