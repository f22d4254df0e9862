// sparse/testing/fake_view.h -- a small KvView for tests of single stages: one arena, pages in scrambled
// order, two or more layers a page apart, an index block with other page numbers than the payload, rings in
// blocks of their own. Unwritten memory is poison (0xff: NaN in every float type).
//
//   FakeView view(model, 32, codec, quest);      // planes of these stages
//   view.add_row();                              // once per row
//   view.begin({5, 1}, Phase::kPrefill);         // tokens of each row in this step: tables and places
//   ... hooks with view.step(codec) ...
//   view.commit();                               // the tokens count as stored
#pragma once
#include <cstring>
#include <map>
#include <vector>

#include "device/cpu/thread_pool.h"
#include "sparse/contract.h"

namespace se {

class FakeView final : public KvView {
 public:
  static constexpr int64_t kPages = 64;  // of a row

  FakeView(ModelKv model, int64_t page, const Codec& codec, const Reader* reader = nullptr)
      : model_(std::move(model)),
        page_(page),
        codec_(codec),
        spec_(codec.spec(model_)),
        pool_(3),
        stream_(pool_) {
    declare(codec, spec_.components);
    if (reader) {
      const ReaderSpec r = reader->spec(model_, spec_);
      declare(*reader, r.components);
      unit_ = r.unit, cap_ = r.cap;
    }
    for (int64_t& slice : slice_) slice = (slice + 255) / 256 * 256;
    sequence_bytes_ = (sequence_bytes_ + 255) / 256 * 256;
    for (int b = 0; b < 2; ++b) pages_at_[b + 1] = pages_at_[b] + kRows * kPages * page_bytes(b);
    memory_.resize(size_t(pages_at_[2] + kRows * sequence_bytes_ + 4096));
    std::memset(memory_.data(), 0xff, memory_.size());
    base_ = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
  }

  void add_row(int64_t paged = 0, int64_t tail = 0) {
    rows_.push_back({paged, tail, 0}), new_.push_back(0), encoded_.push_back(0);
  }

  void begin(std::vector<int64_t> tokens, Phase phase) {
    phase_ = phase;
    new_ = std::move(tokens);
    q_start_.assign(1, 0), kv_from_.clear(), ids_.clear(), slots_.clear(), split_.assign(rows_.size(), 256);
    for (size_t r = 0; r < rows_.size(); ++r) {
      const Row& row = rows_[r];
      kv_from_.push_back(q_start_.back()), q_start_.push_back(q_start_.back() + int32_t(new_[r]));
      ids_.push_back(int32_t(r));
      const int64_t all = row.tail + new_[r], g = spec_.grain;
      encoded_[r] = spec_.tail == 0                                    ? new_[r]
                    : phase == Phase::kPrefill && all > spec_.residual ? (all - spec_.residual) / g * g
                                                                       : 0;
      for (int64_t i = 0; i < new_[r]; ++i) {
        const int64_t j = row.tail + i;  // place among the tokens that are not encoded yet
        slots_.push_back(spec_.tail == 0    ? page_slot(0, r, row.paged + i)
                         : j >= encoded_[r] ? ring_slot(r, (row.first + j) % spec_.tail)
                                            : -1);
      }
    }
    n_ = int32_t(rows_.size());
    step_rows_.q_start = i32(q_start_), step_rows_.kv_from = i32(kv_from_), step_rows_.split = i32(split_);
    step_rows_.rows = int(rows_.size()),
    step_rows_.decode_rows = phase == Phase::kDecode ? step_rows_.rows : 0;
    list_ = {i32(ids_), TensorView::of(&n_, DType::kI32, {1}), n_};
    build_tables();
    arena_.reset();
  }
  void only_row(int32_t row) {
    ids_ = {row}, n_ = 1, list_ = {i32(ids_), TensorView::of(&n_, DType::kI32, {1}), 1};
  }

  DeviceStep step(const Stage* callee = nullptr) {
    const TensorView params = arena_.take(DType::kI32, {n_, 8});
    std::memset(params.data, 0, size_t(n_) * 32);
    const auto p = (callee ? callee : &codec_)->params({});
    for (int64_t i = 0; i < n_; ++i) std::copy(p.begin(), p.end(), params.at<int32_t>(i));
    return {phase_, step_rows_, list_, params, *this, codec_, picked_, stream_, arena_, force};
  }

  void commit() {
    for (size_t r = 0; r < rows_.size(); ++r) {
      Row& row = rows_[r];
      row.paged += encoded_[r];
      if (spec_.tail == 0) continue;
      row.tail += new_[r] - encoded_[r];
      row.first = (row.first + encoded_[r]) % spec_.tail;
      SE_CHECK(row.tail <= spec_.tail, "{} tokens in a ring of {}", row.tail, spec_.tail);
    }
    begin(std::vector<int64_t>(rows_.size(), 0), Phase::kCommit);
  }

  // Commit work of one row: the full units of `unit` tokens in [from, to), or the oldest grain of its tail,
  // which is counted in.
  Units units(int64_t row, int64_t from, int64_t to, int64_t unit, int layer) {
    unit_payload_.clear(), unit_index_.clear(), unit_tail_.clear();
    for (int64_t t = from; t + unit <= to; t += unit) {
      unit_payload_.push_row({run(page_slot(0, size_t(row), t), unit)}),
          unit_index_.push_row({run(page_slot(1, size_t(row), t), unit)});
    }
    return made(unit, layer);
  }
  Units close(int64_t row, int layer) {
    Row& r = rows_[size_t(row)];
    unit_payload_.clear(), unit_index_.clear(), unit_tail_.clear();
    const int64_t g = spec_.grain, left = std::min(g, spec_.tail - r.first);
    unit_payload_.push_row({run(page_slot(0, size_t(row), r.paged), g)});
    std::vector<int64_t> ring{run(ring_slot(size_t(row), r.first), left)};
    if (left < g) ring.push_back(run(ring_slot(size_t(row), 0), g - left));
    unit_tail_.push_row(ring);
    return made(g, layer);
  }
  void count_closed(int64_t row) {
    Row& r = rows_[size_t(row)];
    r.paged += spec_.grain, r.tail -= spec_.grain, r.first = (r.first + spec_.grain) % spec_.tail;
    begin(std::vector<int64_t>(rows_.size(), 0), Phase::kCommit);
  }

  TensorView plane(const Stage& owner, int layer, int component) const override {
    const auto found = planes_.find({&owner, component});
    if (found == planes_.end()) return {};
    TensorView t = found->second;
    t.data = base_ + offset_.at({&owner, component}) +
             (per_sequence_.count({&owner, component}) ? layer * layer_bytes_ : 0);
    return t;
  }
  KvIndex past(int layer, Block block = Block::kPayload) const override {
    return past_[int(block)].view(int(page_), int(page_), offset(layer, int(block)));
  }
  KvIndex tail(int) const override { return tail_.view(spec_.tail, spec_.tail, offset(0, 0)); }
  TensorView slots(int layer) const override {
    shifted_ = slots_;
    for (int64_t& s : shifted_) s += spec_.tail == 0 ? shift(layer, 0) : 0;
    return TensorView::of(shifted_.data(), DType::kI64, {int64_t(shifted_.size())});
  }
  KvIndex fresh(int layer) const override { return fresh_.view(int(page_), int(page_), offset(layer, 0)); }
  TensorView ring_item() const override { return {}; }

  int64_t paged(int64_t row) const { return rows_[size_t(row)].paged; }
  int64_t tail_tokens(int64_t row) const { return rows_[size_t(row)].tail; }
  int64_t tokens() const { return q_start_.back(); }
  KvIndex picked(int layer) const {
    KvIndex i = picked_.index;
    i.offset = offset(layer, 0);
    return i;
  }
  const TensorView& picked_ordinals() const { return picked_.ordinals; }
  Stream& stream() { return stream_; }
  Arena& arena() { return arena_; }
  const StepRows& step_rows() const { return step_rows_; }
  const RowList& list() const { return list_; }
  bool force = false;

 private:
  static constexpr int64_t kRows = 3;  // at most
  struct Row {
    int64_t paged, tail, first;
  };
  struct Ragged {
    std::vector<int64_t> runs, start;
    std::vector<int32_t> counts, tokens;
    void clear() { runs.clear(), start.clear(), counts.clear(), tokens.clear(); }
    void push_row(const std::vector<int64_t>& row) {
      start.push_back(int64_t(runs.size())), counts.push_back(int32_t(row.size())), tokens.push_back(0);
      for (int64_t r : row) runs.push_back(r), tokens.back() += int32_t(run_tokens(r));
    }
    KvIndex view(int unit, int page, const TensorView& offset) const {
      KvIndex i;
      i.runs = i64(runs), i.start = i64(start), i.offset = offset, i.counts = i32(counts),
      i.tokens = i32(tokens);
      i.unit = unit, i.page = page, i.cap = kPages;
      return i;
    }
  };
  static TensorView i32(const std::vector<int32_t>& v) {
    return TensorView::of(const_cast<int32_t*>(v.data()), DType::kI32, {int64_t(v.size())});
  }
  static TensorView i64(const std::vector<int64_t>& v) {
    return TensorView::of(const_cast<int64_t*>(v.data()), DType::kI64, {int64_t(v.size())});
  }

  void declare(const Stage& owner, const std::vector<ComponentSpec>& components) {
    for (size_t c = 0; c < components.size(); ++c) {
      const ComponentSpec& spec = components[c];
      const std::pair<const Stage*, int> key{&owner, int(c)};
      const LayerKv& l = model_.layers[0];
      int64_t item = block_bytes(spec.dtype);
      for (int64_t s : spec.shape) item *= s;
      const int64_t items = spec.per == kPerSequence ? 1 : page_ / spec.per,
                    heads = spec.heads ? l.kv_heads : 1;
      TensorView t;
      t.dtype = spec.dtype;
      const auto dim = [&](int64_t shape, int64_t stride) {
        t.shape[size_t(t.rank)] = shape, t.stride[size_t(t.rank)] = stride, ++t.rank;
      };
      dim(int64_t(1) << 40, 256);
      if (spec.per != kPerSequence) dim(items, item);
      if (spec.heads) dim(heads, item * items);
      int64_t inner = item;
      for (int64_t s : spec.shape) inner /= s, dim(s, inner);
      planes_[key] = t;
      int64_t& used = spec.per == kPerSequence ? layer_bytes_ : slice_[spec.block == Block::kIndex];
      offset_[key] = used;
      if (spec.per == kPerSequence) per_sequence_[key] = true;
      used = (used + item * items * heads + 63) / 64 * 64;
      sequence_bytes_ = layer_bytes_ * int64_t(model_.layers.size());
    }
  }
  int64_t page_bytes(int block) const { return slice_[block] * int64_t(model_.layers.size()); }
  // Page e of a row: another permutation in each block.
  int64_t page_id(int block, size_t row, int64_t e) const {
    const int64_t number =
        int64_t(row) * kPages + (block == 0 ? (e * 37 + 11) % kPages : (e * 13 + 5) % kPages);
    return (pages_at_[block] + number * page_bytes(block)) / 256;
  }
  int64_t page_slot(int block, size_t row, int64_t t) const {
    return page_id(block, row, t / page_) * page_ + t % page_;
  }
  int64_t ring_slot(size_t row, int64_t place) const {
    return (pages_at_[2] + int64_t(row) * sequence_bytes_) / 256 * spec_.tail + place;
  }
  int64_t shift(int layer, int block) const { return layer * slice_[block] / 256 * page_; }
  TensorView offset(int layer, int block) const {
    std::vector<int64_t>& v = offsets_[{layer, block}];
    v.assign(512, block < 2 ? shift(layer, block) : 0);
    return i64(v);
  }
  Units made(int64_t unit, int layer) {
    Units u;
    u.n = int(unit_payload_.counts.size());
    unit_rows_.assign(size_t(u.n), 0);
    u.payload = unit_payload_.view(int(unit), int(page_), offset(layer, 0));
    u.index = unit_index_.view(int(unit), int(page_), offset(layer, 1));
    u.tail = unit_tail_.view(spec_.tail, spec_.tail, offset(0, 0));
    u.row = i32(unit_rows_);
    return u;
  }
  void build_tables() {
    for (int b = 0; b < 2; ++b) {
      past_[b].clear();
      for (size_t r = 0; r < rows_.size(); ++r) past_[b].push_row(pieces(b, r, 0, rows_[r].paged));
    }
    tail_.clear(), fresh_.clear();
    for (size_t r = 0; r < rows_.size(); ++r) {
      const Row& row = rows_[r];
      std::vector<int64_t> ring;
      const int64_t left = spec_.tail == 0 ? 0 : std::min(row.tail, spec_.tail - row.first);
      if (left > 0) ring.push_back(run(ring_slot(r, row.first), left));
      if (row.tail > left) ring.push_back(run(ring_slot(r, 0), row.tail - left));
      tail_.push_row(ring);
      fresh_.push_row(spec_.tail == 0 ? std::vector<int64_t>{}
                                      : pieces(0, r, row.paged, row.paged + encoded_[r]));
    }
    picked_runs_.assign(rows_.size() * size_t(cap_), -1), picked_counts_.assign(rows_.size(), -1),
        picked_tokens_.assign(rows_.size(), -1);
    picked_ordinals_.assign(picked_runs_.size(), -1), picked_start_.clear();
    for (size_t r = 0; r < rows_.size(); ++r) picked_start_.push_back(int64_t(r) * cap_);
    KvIndex& i = picked_.index;
    i.runs = i64(picked_runs_), i.start = i64(picked_start_), i.counts = i32(picked_counts_),
    i.tokens = i32(picked_tokens_);
    i.unit = unit_, i.page = int(page_), i.cap = cap_;
    picked_.ordinals = TensorView::of(picked_ordinals_.data(), DType::kI32, {int64_t(rows_.size()), cap_});
  }
  std::vector<int64_t> pieces(int block, size_t row, int64_t from, int64_t to) const {
    std::vector<int64_t> runs;
    for (int64_t t = from; t < to;) {
      const int64_t n = std::min(to - t, page_ - t % page_);
      runs.push_back(run(page_slot(block, row, t), n));
      t += n;
    }
    return runs;
  }

  ModelKv model_;
  int64_t page_;
  const Codec& codec_;
  CodecSpec spec_;
  ThreadPool pool_;
  Stream stream_;
  Arena arena_;
  std::vector<char> memory_;
  char* base_ = nullptr;
  std::array<int64_t, 2> slice_{};
  std::array<int64_t, 3> pages_at_{};
  int64_t layer_bytes_ = 0, sequence_bytes_ = 0, cap_ = 0;
  int unit_ = 16;
  std::map<std::pair<const Stage*, int>, TensorView> planes_;
  std::map<std::pair<const Stage*, int>, int64_t> offset_;
  std::map<std::pair<const Stage*, int>, bool> per_sequence_;
  Phase phase_ = Phase::kPrefill;
  std::vector<Row> rows_;
  std::vector<int64_t> new_, encoded_, slots_;
  mutable std::vector<int64_t> shifted_;
  mutable std::map<std::pair<int, int>, std::vector<int64_t>> offsets_;
  std::vector<int32_t> q_start_, kv_from_, split_, ids_, unit_rows_;
  int32_t n_ = 0;
  StepRows step_rows_;
  RowList list_;
  Ragged past_[2], tail_, fresh_, unit_payload_, unit_index_, unit_tail_;
  std::vector<int64_t> picked_runs_, picked_start_;
  std::vector<int32_t> picked_counts_, picked_tokens_, picked_ordinals_;
  KvPicked picked_;
};

}  // namespace se
