#include "sparse/driver.h"

#include <algorithm>
#include <cstring>

#include "base/half.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/latent.h"
#include "kernels/rope/rope.h"
#include "sparse/driver_impl.h"
#include "sparse/windows.h"

namespace se {
namespace {

// K and V enter the cache in the model's dtype; the present is attended as rounded, so that no cut of a
// prompt shows.
void round_to(DType dtype, const TensorView& t) {
  if (dtype == DType::kF32) return;
  float* x = t.ptr<float>();
  const int64_t n = t.numel();
  if (dtype == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) x[i] = bf16_to_f32(f32_to_bf16(x[i]));
  } else {
    for (int64_t i = 0; i < n; ++i) x[i] = f16_to_f32(f32_to_f16(x[i]));
  }
}

// MLA rotates the channels behind w_uk's part of q and behind the value in k.
void rotate(const LayerKv& l, TensorView q, TensorView k, const TensorView& pos, Stream& stream) {
  const auto behind = [](TensorView& t, int64_t channels) {
    t.data = t.at<float>(0, 0, channels);
    t.shape[2] -= channels;
  };
  if (l.latent()) behind(q, l.w_uk.shape[1]), behind(k, l.v_dim);
  qk_norm_rope(q, k, l.qk, pos, stream);
}

template <typename T>
TensorView host(std::vector<T>& v, DType dtype) {
  return TensorView::of(v.data(), dtype, {int64_t(v.size())});
}

}  // namespace

void PlanSequence::start_turn(int64_t prompt, int64_t max_new) {
  turn_start_ = logical_;
  prompt_ = logical_ + prompt;
  max_new_ = max_new;
  generated_ = 0;
  ring_count_ = 0;
  expanded_ = plan_->expand_from > 0 && attached_ + prompt >= plan_->expand_from;
  attached_ = 0;
}

void PackedRows::clear() {
  q_start.assign(1, 0);
  kv_from.clear(), pos.clear(), split.clear(), item.clear();
}

void PackedRows::add(
    const PlanSequence&, int64_t item_id, int64_t first_position, int64_t tokens, int64_t split_tokens) {
  kv_from.push_back(q_start.back());
  q_start.push_back(q_start.back() + int32_t(tokens));
  for (int64_t t = 0; t < tokens; ++t) pos.push_back(int32_t(first_position + t));
  item.push_back(item_id);
  split.push_back(int32_t(split_tokens));
}

void PackedRows::seal(int decode_rows) {
  view.q_start = host(q_start, DType::kI32), view.kv_from = host(kv_from, DType::kI32);
  view.pos = host(pos, DType::kI32), view.split = host(split, DType::kI32),
  view.item = host(item, DType::kI64);
  view.rows = int(kv_from.size()), view.decode_rows = decode_rows;
}

Driver::Driver(const ModelKv& model, KvStore& store, Stream& stream)
    : impl_(std::make_unique<Impl>(model, store, stream)) {}
Driver::~Driver() = default;

Result<std::unique_ptr<PlanSequence>> Driver::open(std::shared_ptr<const Plan> plan) {
  auto seq = std::make_unique<PlanSequence>();
  SE_ASSIGN(seq->kv_, impl_->store.create_sequence(plan->layout));
  seq->id_ = impl_->next_id++;
  seq->excess_.assign(impl_->model.layers.size(), 0);
  seq->plan_ = std::move(plan);
  return seq;
}

Result<std::unique_ptr<PlanSequence>> Driver::fork(const PlanSequence& from) {
  SE_CHECK(!from.prefilling(), "a sequence forks between steps");
  auto seq = std::make_unique<PlanSequence>();
  SE_ASSIGN(seq->kv_, impl_->store.fork(*from.kv_));
  seq->plan_ = from.plan_;
  seq->id_ = impl_->next_id++;
  seq->turn_start_ = from.turn_start_, seq->prompt_ = from.prompt_, seq->max_new_ = from.max_new_;
  seq->logical_ = from.logical_, seq->generated_ = from.generated_, seq->excess_ = from.excess_;
  seq->ring_count_ = from.ring_count_, seq->counters_ = from.counters_;
  seq->expanded_ = from.expanded_, seq->expanded_tokens_ = from.expanded_tokens_;
  seq->attached_ = from.attached_;
  return seq;
}

SeqView Driver::Impl::facts(const PlanSequence& seq, bool decode, bool last_chunk, int64_t extra) {
  resident.resize(model.layers.size());
  for (size_t l = 0; l < resident.size(); ++l)
    resident[l] = seq.kv_->resident(int(l)) + extra - seq.excess_[l];
  SeqView v;
  v.id = seq.id_, v.prompt = seq.prompt_, v.max_new = seq.max_new_, v.logical = seq.logical_ + extra;
  v.generated = seq.generated_, v.resident = resident, v.decode = decode, v.last_chunk = last_chunk;
  v.staged = seq.plan_->staging == Staging::kLayer;
  return v;
}

DeviceStep Driver::Impl::device_step(Phase phase,
                                     const StepRows& rows,
                                     const RowList& list,
                                     const KvView& kv,
                                     const Codec& codec,
                                     const Stage& callee,
                                     std::span<PlanSequence* const> seqs,
                                     KvPicked& picked,
                                     Arena& arena) {
  const TensorView params = arena.take(DType::kI32, {int64_t(seqs.size()), 8});
  for (size_t i = 0; i < seqs.size(); ++i) {
    const auto p = callee.params(facts(*seqs[i], phase == Phase::kDecode, false, 0));
    std::copy(p.begin(), p.end(), params.at<int32_t>(i));
  }
  return {phase, rows, list, params, kv, codec, picked, stream, arena, force};
}

void Driver::Impl::add_to_family(int row, const DriverRow& r) {
  const bool expanded = !r.decode && r.seq->expanded_;
  auto found = std::find_if(families.begin(), families.end(), [&](const Family& f) {
    return f.plan.get() == r.seq->plan_.get() && f.decode == r.decode && f.expanded == expanded;
  });
  if (found == families.end()) {
    Family f;
    f.plan = r.seq->plan_, f.decode = r.decode, f.expanded = expanded;
    families.push_back(std::move(f));
    found = std::prev(families.end());
  }
  found->ids.push_back(row);
  found->seqs.push_back(r.seq);
}

void Driver::Impl::make_families() {
  for (Family& f : families) {
    f.n = int32_t(f.ids.size());
    f.list = {host(f.ids, DType::kI32), TensorView::of(&f.n, DType::kI32, {1}), f.n};
    f.tables =
        std::make_unique<StepTables>(*f.plan, *f.plan->layout, base(), int(step.size()), tokens, false);
    if (!f.decode || !f.plan->read) continue;
    const int64_t rows = int64_t(step.size()), cap = f.plan->read_spec.cap;
    f.picked_start.resize(size_t(rows));
    for (int64_t r = 0; r < rows; ++r) f.picked_start[size_t(r)] = r * cap;
    KvIndex& i = f.picked.index;
    i.runs = scratch.take(DType::kI64, {rows * cap});
    i.start = host(f.picked_start, DType::kI64);
    i.counts = scratch.take(DType::kI32, {rows}), i.tokens = scratch.take(DType::kI32, {rows});
    std::memset(i.counts.data, 0, size_t(rows) * 4), std::memset(i.tokens.data, 0, size_t(rows) * 4);
    i.unit = f.plan->read_spec.unit, i.page = int(f.plan->page), i.cap = cap;
    f.picked.ordinals = scratch.take(DType::kI32, {rows, cap});
  }
}

// With a ring the chunk is the plan's and bounded, and the ring's tokens must not be parted from it: the row
// simply grows.
int64_t Driver::Impl::skipped(const PlanSequence& seq, int group, int64_t n) const {
  const KvLayout& layout = *seq.plan().layout;
  const int window = layout.groups()[size_t(group)].window;
  return window == 0 || layout.tail() > 0 ? 0 : window_skips(seq.logical_, n, window, layout.page());
}

int64_t Driver::Impl::bytes_needed(const DriverRow& row) const {
  const Plan& plan = row.seq->plan();
  const KvLayout& layout = *plan.layout;
  int64_t need = 0;
  for (int g = 0; g < int(layout.groups().size()); ++g) {
    const KvTable& t = row.seq->kv().table(g);
    if (const int64_t skip = skipped(*row.seq, g, row.tokens)) {
      need += layout.pages(row.tokens - skip) *
              (layout.page_bytes(g, Block::kPayload) + layout.page_bytes(g, Block::kIndex));
      continue;
    }
    int64_t paged = t.paged + row.tokens;
    if (plan.store_spec.tail > 0) {  // a full ring closes at commit: its pages are counted now
      const bool closes = row.decode && t.tail + 1 == plan.store_spec.tail;
      paged = t.paged + (row.decode ? (closes ? plan.store_spec.grain : 0)
                                    : tokens_to_encode(plan.store_spec, t.tail + row.tokens));
    }
    const int64_t per_page = layout.page_bytes(g, Block::kPayload) + layout.page_bytes(g, Block::kIndex);
    const bool copies = paged > t.paged && t.paged % layout.page() != 0 && t.payload.back().shared();
    need += (layout.pages(paged) - int64_t(t.payload.size()) + (copies ? 1 : 0)) * per_page;
    need += (layout.pages(t.tokens() + row.tokens) - layout.pages(t.tokens())) *
            layout.page_bytes(g, Block::kState);
  }
  return need;
}

Status Driver::Impl::place_row(int r, const DriverRow& row, Family& f) {
  PlanSequence& seq = *row.seq;
  KvSequence& kv = *seq.kv_;
  const CodecSpec& spec = f.plan->store_spec;
  f.tables->add_past(r, kv, seq.logical_);
  const int32_t* pos = packed.pos.data() + packed.q_start[size_t(r)];
  const std::span<const int32_t> positions(pos, size_t(row.tokens));
  for (int g = 0; g < int(kv.layout().groups().size()); ++g) {
    const int64_t skip = skipped(seq, g, row.tokens);
    if (skip > 0) seq.retired_.emplace_back(g, store.take_table(kv, g));
    const int64_t paged = kv.table(g).paged, tail = kv.table(g).tail;
    if (spec.tail == 0) {
      SE_TRY(store.append(kv, positions.subspan(size_t(skip)), std::array{g}));
    } else {
      const int64_t encoded = row.decode ? 0 : tokens_to_encode(spec, tail + row.tokens);
      const int64_t from_tail = std::min(encoded, tail), from_new = encoded - from_tail;
      if (from_tail > 0) SE_TRY(store.close_tail(kv, g, from_tail));
      if (from_new > 0) SE_TRY(store.append(kv, positions.first(size_t(from_new)), std::array{g}));
      SE_TRY(store.append_tail(kv, g, positions.subspan(size_t(from_new))));
    }
    const int64_t first = packed.q_start[size_t(r)] + skip;
    f.tables->add_places(r, g, kv.table(g), paged, tail, first, row.tokens - skip, kv.item());
  }
  return ok();
}

Status Driver::begin(std::span<const DriverRow> rows) {
  Impl& d = *impl_;
  d.force = force_select_;
  int64_t need = 0;
  for (const DriverRow& r : rows) {
    SE_CHECK(r.decode ? r.tokens == 1 : r.seq->plan().staging == Staging::kNone,
             "layer-major prompts go in slices");
    need += d.bytes_needed(r);
  }
  if (need > d.store.arena().free_bytes())
    return exhausted(
        format("the step needs {} bytes of KV pages, {} are free", need, d.store.arena().free_bytes()));
  d.scratch.reset();
  d.step.assign(rows.begin(), rows.end());
  d.families.clear();
  d.packed.clear();
  int decode_rows = 0;
  for (int r = 0; r < int(rows.size()); ++r) {
    const PlanSequence& seq = *rows[size_t(r)].seq;
    d.packed.add(seq, seq.kv_->item(), seq.logical_, rows[size_t(r)].tokens, seq.plan().split);
    decode_rows += rows[size_t(r)].decode;
    d.add_to_family(r, rows[size_t(r)]);
  }
  d.packed.seal(decode_rows);
  d.tokens = int64_t(d.packed.pos.size());
  d.make_families();
  std::vector<std::vector<KvMark>> marks;
  for (const DriverRow& row : rows) marks.push_back(d.store.mark(*row.seq->kv_));
  for (Family& f : d.families) {
    for (int32_t r : f.ids) {
      Status s = d.place_row(r, rows[size_t(r)], f);
      if (s.ok()) continue;
      for (size_t i = 0; i < rows.size(); ++i) {
        PlanSequence& seq = *rows[i].seq;
        for (auto& [group, table] : seq.retired_) seq.kv_->table(group) = std::move(table);
        seq.retired_.clear();
        d.store.rollback(*seq.kv_, marks[i]);
      }
      return s;
    }
  }
  return ok();
}

void Driver::attend(int layer,
                    const TensorView& q,
                    const TensorView& k,
                    const TensorView& v,
                    const TensorView& out,
                    Stream& stream) {
  Impl& d = *impl_;
  const LayerKv& l = d.model.layers[size_t(layer)];
  SE_CHECK(q.shape[0] == d.tokens, "the step packs {} tokens, the model passed {}", d.tokens, q.shape[0]);
  Present present;
  present.q = heads_view(q, l.q_heads, l.q_dim());
  const TensorView keys = heads_view(k, l.kv_heads, l.k_dim);
  set_keys(present, l, keys, l.latent() ? TensorView() : heads_view(v, l.kv_heads, l.v_dim));
  rotate(l, present.q, present.k, d.packed.view.pos, stream);
  round_to(d.model.dtype, present.k);
  if (!l.latent()) round_to(d.model.dtype, present.v);
  const auto mark = d.scratch.mark();
  const TensorView lse = d.scratch.take(DType::kF32, {d.tokens, l.q_heads});
  const TensorView heads_out = heads_view(out, l.q_heads, l.out_dim());
  for (Family& f : d.families) {
    if (l.latent() && !f.expanded) {
      d.attend_absorbed(f, layer, present, heads_out, lse);
    } else {
      d.attend_family(f, layer, present, heads_out, lse);
    }
  }
  d.scratch.rewind(mark);
}

// MLA: queries go to latent space, outputs come back from it.
void Driver::Impl::attend_absorbed(
    Family& f, int layer, const Present& present, const TensorView& out, const TensorView& lse) {
  const LayerKv& l = model.layers[size_t(layer)];
  const auto mark = scratch.mark();
  Present latent = present;
  latent.q = scratch.take(DType::kF32, {tokens, l.q_heads, l.k_dim});
  const TensorView latent_out = scratch.take(DType::kF32, {tokens, l.q_heads, l.v_dim});
  const auto rows = [&](const TensorView& t, int32_t row) {
    return t.slice(packed.q_start[size_t(row)], packed.q_start[size_t(row) + 1]);
  };
  for (int32_t r : f.ids) absorb_queries(l, rows(present.q, r), rows(latent.q, r), stream);
  attend_family(f, layer, latent, latent_out, lse);
  for (int32_t r : f.ids) {
    if (!fill) latent_outputs(l, rows(latent_out, r), rows(out, r), stream);
  }
  scratch.rewind(mark);
}

void Driver::Impl::attend_family(
    Family& f, int layer, Present& present, const TensorView& out, const TensorView& lse) {
  const Plan& plan = *f.plan;
  const LayerKv& l = model.layers[size_t(layer)];
  const Phase phase = f.decode ? Phase::kDecode : Phase::kPrefill;
  DeviceStep s =
      device_step(phase, packed.view, f.list, *f.tables, *plan.store, *plan.store, f.seqs, f.picked, scratch);
  const bool late = !f.decode && plan.store_spec.tail > 0;  // overwrites the ring that this chunk still reads
  AttentionView view;
  const BlockList* blocks = nullptr;
  if (f.staged) {
    DeviceStep p = device_step(
        phase, packed.view, f.list, *f.staged, *plan.plain, *plan.plain, f.seqs, f.picked, scratch);
    plan.plain->write(layer, present, p);
    if (f.tables->any_past(layer)) plan.store->parts(layer, f.tables->past(layer), view, s);
    plan.plain->parts(layer, f.staged->past(layer), view, p);
    blocks = select_blocks(f, layer, present, p);
  } else {
    if (!late) plan.store->write(layer, present, s);
    if (plan.store_spec.present_as_stored) plan.store->as_stored(layer, present, s);
    plan.store->parts(layer, select(f, layer, present, s), view, s);
    blocks = select_blocks(f, layer, present, s);
  }
  if (!fill) run_parts(f, view, l, present, blocks, out, lse);
  if (f.staged && slice.last && l.kind == LayerKind::kFull) keep_votes(f, l, present);
  if (!f.staged && late) plan.store->write(layer, present, s);

  if (!f.decode) return;
  if (on_read && l.kind == LayerKind::kFull) trace_reads(f, layer, view, present, lse);
  for (size_t i = 0; i < f.seqs.size(); ++i) {
    PlanSequence& seq = *f.seqs[i];
    const int32_t row = f.ids[i];
    if (layer == 0) seq.counters_.last_read_tokens = 0;
    if (l.kind != LayerKind::kFull) continue;
    int64_t read = 0;
    for (int p = 0; p < view.n; ++p) read += *view.parts[size_t(p)].index.tokens.at<int32_t>(row);
    seq.counters_.read_tokens += read;
    seq.counters_.last_read_tokens += read;
    if (plan.ring > 0) {
      const KvPlane ring = plan.layout->plane(layer, kDriverOwner, 0);
      char* to = store.arena().base() + seq.kv_->item() * kPageStep + ring.offset;
      const int64_t bytes = int64_t(l.q_heads) * l.k_dim * 4;
      std::memcpy(to + seq.ring_count_ % plan.ring * bytes,
                  present.q.at<char>(packed.q_start[size_t(row)]),
                  size_t(bytes));
    }
  }
}

// The last queries of a staged prompt, in the space of stored keys, for the votes that end_slice takes.
void Driver::Impl::keep_votes(const Family& f, const LayerKv& l, const Present& present) {
  int64_t window = 0;
  for (const KeeperSpec& spec : f.plan->keep_specs) {
    for (const ScoreSpec& s : spec.scores) {
      if (s.queries == ScoreSpec::Queries::kWindow) window = std::max<int64_t>(window, s.window);
    }
  }
  window = std::min(window, present.q.shape[0]);
  const TensorView q = present.q.slice(present.q.shape[0] - window, present.q.shape[0]);
  slice.votes.resize(size_t(window * l.q_heads * l.k_dim));
  const TensorView votes = TensorView::of(slice.votes.data(), DType::kF32, {window, l.q_heads, l.k_dim});
  if (f.expanded && window > 0) return absorb_queries(l, q, votes, stream);
  std::copy_n(q.ptr<float>(), votes.numel(), votes.ptr<float>());
}

KvIndex Driver::Impl::select(Family& f, int layer, const Present& present, DeviceStep& s) {
  const Plan& plan = *f.plan;
  if (!f.decode || !plan.read || plan.read_spec.source[size_t(layer)] < 0) return f.tables->past(layer);
  f.picked.index.offset = f.tables->offsets(layer, Block::kPayload);
  if (plan.read_spec.source[size_t(layer)] == layer) {
    DeviceStep r = device_step(s.phase, s.rows, s.list, s.kv, s.codec, *plan.read, f.seqs, f.picked, scratch);
    plan.read->select(layer, present, r);
  }
  return f.picked.index;
}

void Driver::Impl::run_parts(Family& f,
                             const AttentionView& view,
                             const LayerKv& l,
                             const Present& present,
                             const BlockList* blocks,
                             const TensorView& out,
                             const TensorView& lse) {
  int taker = -1;  // of the present: the last part that can
  for (int p = 0; p < view.n; ++p) {
    if (view.parts[size_t(p)].with_present) taker = p;
  }
  SE_CHECK(!blocks || taker >= 0, "{}: no part takes the blocks of past and present", f.plan->text);
  AttendArgs a;
  a.rows = &packed.view, a.list = f.list, a.q = present.q, a.scale = l.scale, a.scratch = &scratch;
  a.window = l.kind == LayerKind::kWindow ? l.window : 0;
  a.expanded = f.expanded ? &l : nullptr;
  bool first = true;
  const auto attend_into = [&](auto&& call) {
    const auto mark = scratch.mark();
    a.out = first ? out : scratch.take(DType::kF32, {tokens, l.q_heads, out.shape[2]});
    a.lse = first ? lse : scratch.take(DType::kF32, {tokens, l.q_heads});
    call();
    if (!first) merge_attention(packed.view, f.list, a.out, a.lse, out, lse, stream);
    scratch.rewind(mark);
    first = false;
  };
  for (int p = 0; p < view.n; ++p) {
    AttentionPart part = view.parts[size_t(p)];
    if (l.latent()) part.v_in_k = l.v_dim;
    a.present = p == taker ? &present : nullptr;
    a.blocks = p == taker ? blocks : nullptr;
    attend_into([&] { part.attend(a, part, stream); });
  }
  if (taker >= 0) return;
  a.present = &present;
  attend_into([&] { attend_present(a, stream); });
}

void Driver::fill_only(bool on) { impl_->fill = on; }

int64_t Driver::bytes(const PlanSequence& seq) const {
  int64_t n = impl_->store.bytes(*seq.kv_);
  for (const auto& [group, table] : seq.retired_) {
    for (const auto* pages : {&table.payload, &table.index, &table.state}) {
      for (const PageRef& page : *pages) n += page.bytes();
    }
  }
  if (!seq.staged_) return n;
  n += impl_->store.bytes(*seq.staged_) + (seq.pending_block_ ? seq.pending_block_.bytes() : 0);
  const KvLayout& layout = *seq.plan().layout;
  for (size_t g = 0; g < seq.pending_.size(); ++g) {
    const auto& old = seq.kv_->table(int(g)).payload;
    const auto known = [&](const PageRef& p) {
      return std::any_of(old.begin(), old.end(), [&](const PageRef& o) { return o.id() == p.id(); });
    };
    for (const PageRef& p : seq.pending_[g].payload) {
      if (!known(p))
        n += layout.page_bytes(int(g), Block::kPayload) + layout.page_bytes(int(g), Block::kIndex);
    }
    n += int64_t(seq.pending_[g].state.size()) * layout.page_bytes(int(g), Block::kState);
  }
  return n;
}

}  // namespace se
