// What follows a step: votes, picks, eviction, closing of full rings, indexing of filled units.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/attention/attention.h"
#include "kernels/attn_scores/attn_scores.h"
#include "sparse/driver_impl.h"

namespace se {

Alone::Alone(
    const PlanSequence& seq, const KvSequence& kv, const Plan& plan, const char* base, int64_t tokens)
    : tables(plan, kv.layout(), base, 1, tokens, &kv.layout() != plan.layout.get()) {
  packed.clear();
  packed.add(seq, kv.item(), 0, tokens, plan.split);
  packed.seal(0);
  list = {TensorView::of(&id, DType::kI32, {1}), TensorView::of(&n, DType::kI32, {1}), 1};
}

Scores Driver::Impl::score(const ScoreSpec& spec,
                           const LayerKv& layer,
                           const AttentionView& view,
                           const TensorView& queries,
                           std::span<const int64_t> last,
                           int64_t ordinals) {
  const int64_t w = queries.shape[0];
  const TensorView logits = commit_scratch.take(DType::kF32, {w, layer.q_heads, ordinals});
  PackedRows one;
  one.clear();
  one.q_start.push_back(int32_t(w)), one.kv_from.push_back(0), one.split.push_back(256),
      one.item.push_back(0);
  one.pos.assign(size_t(w), 0);
  one.seal(0);
  int32_t id = 0, n = 1;
  AttendArgs a;
  a.rows = &one.view, a.q = queries, a.scale = layer.scale, a.scratch = &commit_scratch;
  a.list = {TensorView::of(&id, DType::kI32, {1}), TensorView::of(&n, DType::kI32, {1}), 1};
  int64_t first = 0;  // ordinal of the part's first token
  for (int p = 0; p < view.n; ++p) {
    const AttentionPart& part = view.parts[size_t(p)];
    SE_CHECK(part.logits != nullptr, "a part without logits cannot vote");
    const KvIndex& index = part.index;
    const int32_t held = *index.tokens.at<int32_t>(0);
    if (held == 0) continue;
    const int64_t places = int64_t(*index.counts.at<int32_t>(0)) * index.unit;
    const auto mark = commit_scratch.mark();
    a.logits = commit_scratch.take(DType::kF32, {w, layer.q_heads, places});
    part.logits(a, part, stream);
    for (int64_t i = 0; i < w * layer.q_heads; ++i) {  // places -> ordinals: short runs leave gaps
      const float* from = a.logits.ptr<float>() + i * places;
      float* to = logits.ptr<float>() + i * ordinals + first;
      for (int32_t r = 0; r < *index.counts.at<int32_t>(0); ++r) {
        const int64_t m = run_tokens(index.runs.ptr<int64_t>()[*index.start.at<int64_t>(0) + r]);
        std::memcpy(to, from + int64_t(r) * index.unit, size_t(m) * 4);
        to += m;
      }
    }
    commit_scratch.rewind(mark);
    first += held;
  }
  SE_CHECK(first == ordinals, "parts hold {} tokens of {}", first, ordinals);
  const int64_t heads = spec.per_kv_head ? layer.kv_heads : 1;
  const TensorView out = commit_scratch.take(DType::kF32, {1, heads, ordinals});
  attn_scores(spec, logits, last, layer.scale, layer.kv_heads, out.index(0), stream);
  return out;
}

bool Driver::Impl::pick(PlanSequence& seq,
                        int layer,
                        const SeqView& v,
                        const AttentionView& view,
                        DeviceStep& s,
                        const TensorView& queries,
                        std::span<const int64_t> last,
                        bool prompt_end,
                        int64_t encoded,
                        int64_t tail,
                        int64_t ordinals,
                        std::vector<int32_t>& kept) {
  const Plan& plan = seq.plan();
  kept.resize(size_t(ordinals));
  std::iota(kept.begin(), kept.end(), 0);
  bool any = false;
  std::vector<std::pair<ScoreSpec, Scores>> known;  // equal specs are computed once
  const auto wanted = prompt_end ? ScoreSpec::Queries::kWindow : ScoreSpec::Queries::kRing;
  for (size_t i = 0; i < plan.keep.size(); ++i) {
    const Keeper& keeper = *plan.keep[i];
    const KeeperSpec& spec = plan.keep_specs[i];
    if (!force && !keeper.due(layer, v)) continue;
    any = true;
    std::vector<Scores> scores;
    for (const ScoreSpec& want : spec.scores) {
      const bool here = want.layers.empty() ||
                        std::find(want.layers.begin(), want.layers.end(), layer) != want.layers.end();
      if (want.queries != wanted || !here || queries.empty() || queries.shape[0] == 0) {
        scores.emplace_back();
        continue;
      }
      auto same = std::find_if(known.begin(), known.end(), [&](const auto& k) { return k.first == want; });
      if (same == known.end()) {
        const int64_t w = std::min<int64_t>(want.window, queries.shape[0]), skip = queries.shape[0] - w;
        known.emplace_back(want,
                           score(want,
                                 model.layers[size_t(layer)],
                                 view,
                                 queries.slice(skip, skip + w),
                                 last.subspan(size_t(skip)),
                                 ordinals));
        same = std::prev(known.end());
      }
      scores.push_back(same->second);
    }
    std::vector<int32_t> out(size_t(ordinals) + 1);
    int32_t n_in = int32_t(kept.size()), n_out = 0;
    KeepInput in;
    in.in = {TensorView::of(kept.data(), DType::kI32, {1, n_in}), TensorView::of(&n_in, DType::kI32, {1})};
    in.scores = scores, in.encoded = plan.store_spec.grain > 1 ? encoded : 0, in.tail = tail;
    in.grain = plan.store_spec.grain;
    if (in.grain == 1) in.encoded = encoded;
    KeepList to{TensorView::of(out.data(), DType::kI32, {1, ordinals}),
                TensorView::of(&n_out, DType::kI32, {1})};
    PlanSequence* self = &seq;
    const std::array<PlanSequence*, 1> seqs{self};
    DeviceStep k =
        device_step(Phase::kCommit, s.rows, s.list, s.kv, s.codec, keeper, seqs, s.picked, commit_scratch);
    const auto p = keeper.params(v);
    std::copy(p.begin(), p.end(), k.params.at<int32_t>(0));
    keeper.pick(layer, in, to, k);
    SE_CHECK(n_out >= 0 && n_out <= n_in, "{} kept of {}", n_out, n_in);
    kept.assign(out.begin(), out.begin() + n_out);
  }
  if (!any) return false;
  // The tail always stays, and encoded tokens in whole groups, whatever a keeper says.
  std::vector<uint8_t> stays(size_t(ordinals), 0);
  for (int32_t o : kept) stays[size_t(o)] = 1;
  std::fill_n(stays.begin() + encoded, tail, uint8_t{1});
  const int64_t grain = plan.store_spec.grain;
  for (int64_t g = 0; grain > 1 && g < encoded; g += grain) {
    const auto from = stays.begin() + g, to = stays.begin() + std::min(encoded, g + grain);
    if (std::find(from, to, 1) != to) std::fill(from, to, uint8_t{1});
  }
  kept.clear();
  for (int64_t o = 0; o < ordinals; ++o) {
    if (stays[size_t(o)]) kept.push_back(int32_t(o));
  }
  return true;
}

Driver::Impl::Picks Driver::Impl::pick_after_decode(PlanSequence& seq) {
  Picks picks;
  const Plan& plan = seq.plan();
  if (plan.keep.empty()) return picks;
  const KvSequence& kv = *seq.kv_;
  const SeqView v = facts(seq, true, false, 0);
  const auto due = [&](int l) {
    return force ||
           std::any_of(plan.keep.begin(), plan.keep.end(), [&](const auto& k) { return k->due(l, v); });
  };
  std::unique_ptr<Alone> alone;
  picks.kept.reserve(kv.layout().groups().size());
  for (int g = 0; g < int(kv.layout().groups().size()); ++g) {
    const KvGroup& group = kv.layout().groups()[size_t(g)];
    const int l = group.layers.front();
    if (group.window > 0 || !due(l)) continue;
    commit_scratch.reset();
    if (!alone) {
      alone = std::make_unique<Alone>(seq, kv, plan, base(), 0);
      alone->tables.add_past(0, kv, seq.logical_);
    }
    const std::array<PlanSequence*, 1> seqs{&seq};
    DeviceStep s = device_step(Phase::kCommit,
                               alone->packed.view,
                               alone->list,
                               alone->tables,
                               *plan.store,
                               *plan.store,
                               seqs,
                               alone->picked,
                               commit_scratch);
    AttentionView view;
    plan.store->parts(l, alone->tables.past(l), view, s);
    const KvTable& t = kv.table(g);
    TensorView queries;
    std::vector<int64_t> last;
    if (plan.ring > 0) {  // the last decode queries, oldest first
      const LayerKv& lk = model.layers[size_t(l)];
      const int64_t n = std::min<int64_t>(seq.ring_count_, plan.ring),
                    bytes = int64_t(lk.q_heads) * lk.k_dim * 4;
      queries = commit_scratch.take(DType::kF32, {n, lk.q_heads, lk.k_dim});
      const char* ring = base() + kv.item() * kPageStep + plan.layout->plane(l, kDriverOwner, 0).offset;
      for (int64_t i = 0; i < n; ++i) {
        std::memcpy(queries.at<char>(i), ring + (seq.ring_count_ - n + i) % plan.ring * bytes, size_t(bytes));
        last.push_back(t.tokens() - n + i);
      }
    }
    std::vector<int32_t> stay;
    pick(seq, l, v, view, s, queries, last, false, t.paged, t.tail, t.tokens(), stay);
    seq.counters_.picks += int64_t(kv.layout().groups()[size_t(g)].layers.size());
    while (!stay.empty() && stay.back() >= t.paged) stay.pop_back();
    picks.kept.push_back(std::move(stay));
    picks.lists.push_back({g, picks.kept.back()});
  }
  return picks;
}

void Driver::Impl::drop_unpicked(PlanSequence& seq, const Picks& picks) {
  if (picks.lists.empty()) return;
  const Plan& plan = seq.plan();
  KvSequence& kv = *seq.kv_;
  const SeqView v = facts(seq, true, false, 0);
  const std::vector<int64_t> before(v.resident.begin(), v.resident.end());
  const Status kept = store.keep(kv, picks.lists);
  SE_CHECK(kept.ok(), "a pick was promised its pages: {}", kept.message());
  const SeqView now = facts(seq, true, false, 0);
  for (const GroupKeep& list : picks.lists) {
    for (int l : kv.layout().groups()[size_t(list.group)].layers) {
      int64_t target = before[size_t(l)];
      SeqView was = now;
      was.resident = before;
      for (const auto& k : plan.keep) {
        if (k->due(l, was)) target = std::min(target, k->resident(l, was));
      }
      const int64_t held = kv.resident(l);
      seq.counters_.dropped_tokens += before[size_t(l)] + seq.excess_[size_t(l)] - held;
      seq.excess_[size_t(l)] = std::max<int64_t>(0, held - target);
    }
  }
  seq.ring_count_ = 0;  // ordinals changed
}

std::vector<int64_t> Driver::Impl::full_rings(const PlanSequence& seq) const {
  const CodecSpec& spec = seq.plan().store_spec;
  std::vector<int64_t> closing;
  const size_t groups = seq.kv_->layout().groups().size();
  for (size_t g = 0; g < groups && spec.tail > 0; ++g) {
    if (seq.kv_->table(int(g)).tail < spec.tail) continue;
    closing.resize(groups);
    closing[g] = spec.grain;
  }
  return closing;
}

void Driver::Impl::close_rings(PlanSequence& seq, std::span<const int64_t> closing) {
  const Plan& plan = seq.plan();
  KvSequence& kv = *seq.kv_;
  for (int g = 0; g < int(closing.size()); ++g) {
    const int64_t grain = closing[size_t(g)];
    if (grain == 0) continue;
    const KvTable& t = kv.table(g);
    const int64_t paged = t.paged, first = t.tail_first;
    const Status closed = store.close_tail(kv, g, grain);
    SE_CHECK(closed.ok(), "a full ring was promised its pages: {}", closed.message());
    std::vector<int64_t> to{run(store.slot(kv, g, paged), grain)}, from;
    const int64_t ring = plan.store_spec.tail, m = std::min(grain, ring - first);
    from.push_back(run(kv.item() * ring + first, m));
    if (m < grain) from.push_back(run(kv.item() * ring, grain - m));
    commit_scratch.reset();
    Alone alone(seq, kv, plan, base(), 0);
    const std::array<PlanSequence*, 1> seqs{&seq};
    DeviceStep s = device_step(Phase::kCommit,
                               alone.packed.view,
                               alone.list,
                               alone.tables,
                               *plan.store,
                               *plan.store,
                               seqs,
                               alone.picked,
                               commit_scratch);
    int64_t start = 0, zero = 0;
    int32_t one = 1, parts = int32_t(from.size()), each = int32_t(grain), row = 0;
    for (int l : kv.layout().groups()[size_t(g)].layers) {
      Units u;
      u.n = 1;
      u.row = TensorView::of(&row, DType::kI32, {1});
      u.payload.runs = TensorView::of(to.data(), DType::kI64, {1});
      u.payload.start = TensorView::of(&start, DType::kI64, {1});
      u.payload.offset = alone.tables.offsets(l, Block::kPayload);
      u.payload.counts = TensorView::of(&one, DType::kI32, {1}),
      u.payload.tokens = TensorView::of(&each, DType::kI32, {1});
      u.payload.unit = int(grain), u.payload.page = int(plan.page), u.payload.cap = 1;
      u.tail = u.payload;
      u.tail.runs = TensorView::of(from.data(), DType::kI64, {int64_t(from.size())});
      u.tail.counts = TensorView::of(&parts, DType::kI32, {1});
      u.tail.offset = TensorView::of(&zero, DType::kI64, {1});
      u.tail.unit = u.tail.page = int(ring), u.tail.cap = int64_t(from.size());
      plan.store->close(l, u, s);
    }
  }
}

void Driver::Impl::index_units(PlanSequence& seq) {
  const Plan& plan = seq.plan();
  if (!plan.read || plan.read_spec.index_unit == 0 || plan.read_spec.components.empty()) return;
  KvSequence& kv = *seq.kv_;
  const int64_t unit = plan.read_spec.index_unit, page = plan.page;
  std::unique_ptr<Alone> alone;
  for (int g = 0; g < int(kv.layout().groups().size()); ++g) {
    if (kv.layout().page_bytes(g, Block::kIndex) == 0) continue;  // of layers that read all
    KvTable& t = kv.table(g);
    std::vector<int64_t> payload, index, start;
    for (size_t e = 0; e < t.payload.size(); ++e) {
      const int64_t held = std::min(page, t.paged - int64_t(e) * page);
      for (; t.indexed[e] + unit <= held; t.indexed[e] += int32_t(unit)) {
        start.push_back(int64_t(payload.size()));
        payload.push_back(run(t.payload[e].id() * page + t.indexed[e], unit));
        index.push_back(run(t.index[e].id() * page + t.indexed[e], unit));
      }
    }
    const int n = int(payload.size());
    if (n == 0) continue;
    commit_scratch.reset();
    if (!alone) alone = std::make_unique<Alone>(seq, kv, plan, base(), 0);
    const std::array<PlanSequence*, 1> seqs{&seq};
    DeviceStep s = device_step(Phase::kCommit,
                               alone->packed.view,
                               alone->list,
                               alone->tables,
                               *plan.store,
                               *plan.read,
                               seqs,
                               alone->picked,
                               commit_scratch);
    const size_t units = size_t(n);
    std::vector<int32_t> ones(units, 1), each(units, int32_t(unit)), rows(units, 0);
    std::vector<int64_t> offset(units);
    for (int l : kv.layout().groups()[size_t(g)].layers) {
      if (plan.read_spec.source[size_t(l)] != l) continue;
      Units u;
      u.n = n;
      u.row = TensorView::of(rows.data(), DType::kI32, {n});
      const auto point =
          [&](KvIndex& i, std::vector<int64_t>& runs, std::vector<int64_t>& offsets, Block block) {
            std::fill(offsets.begin(), offsets.end(), *alone->tables.offsets(l, block).at<int64_t>(0));
            i.runs = TensorView::of(runs.data(), DType::kI64, {n}),
            i.start = TensorView::of(start.data(), DType::kI64, {n});
            i.offset = TensorView::of(offsets.data(), DType::kI64, {n});
            i.counts = TensorView::of(ones.data(), DType::kI32, {n}),
            i.tokens = TensorView::of(each.data(), DType::kI32, {n});
            i.unit = int(unit), i.page = int(page), i.cap = 1;
          };
      std::vector<int64_t> index_offset(offset.size());
      point(u.payload, payload, offset, Block::kPayload);
      point(u.index, index, index_offset, Block::kIndex);
      plan.read->index(l, u, s);
    }
  }
}

void Driver::Impl::drop_pages(PlanSequence& seq) {
  const auto& groups = seq.kv_->layout().groups();
  for (int g = 0; g < int(groups.size()); ++g) {
    if (const int window = groups[size_t(g)].window)
      store.drop_before(*seq.kv_, g, seq.logical_ - window + 1);
  }
}

std::vector<Status> Driver::commit() {
  Impl& d = *impl_;
  std::vector<Status> statuses;
  for (const DriverRow& r : d.step) {
    PlanSequence& seq = *r.seq;
    seq.logical_ += r.tokens;
    if (!r.decode && seq.expanded_) seq.expanded_tokens_ += r.tokens;
    seq.retired_.clear();
    if (r.decode) ++seq.generated_, ++seq.ring_count_, ++seq.counters_.decode_steps;
    const Impl::Picks picks = r.decode ? d.pick_after_decode(seq) : Impl::Picks();
    const std::vector<int64_t> closing = d.full_rings(seq);
    statuses.push_back(d.store.can_keep(*seq.kv_, picks.lists, closing));
    if (statuses.back().ok()) {
      d.drop_unpicked(seq, picks);
      d.close_rings(seq, closing);
      d.index_units(seq);
    }
    d.drop_pages(seq);
  }
  d.step.clear();
  d.families.clear();
  return statuses;
}

}  // namespace se
