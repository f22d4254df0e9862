// Layer-major prefill: one layer of the prompt lies in plain pages, is attended exactly, voted on and picked;
// the codec gets the survivors. Old tables serve all layers until commit_prompt.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "sparse/driver_impl.h"
#include "sparse/windows.h"

namespace se {

Status Driver::begin_slice(PlanSequence& seq, int layer, int64_t first, int64_t n) {
  Impl& d = *impl_;
  const Plan& plan = seq.plan();
  d.force = force_select_;
  SE_CHECK(plan.staging == Staging::kLayer && n > 0, "slices are for layer-major plans");
  if (!seq.staged_) {
    SE_ASSIGN(seq.staged_, d.store.create_sequence(plan.staging_layout));
    seq.pending_.assign(plan.layout->groups().size(), {});
    seq.pending_made_.assign(plan.layout->groups().size(), 0);
    seq.kept_.assign(plan.layout->groups().size(), {});
  }
  KvSequence& staged = *seq.staged_;
  d.packed.clear();
  d.packed.add(seq, seq.kv_->item(), seq.logical_ + first, n, plan.split);
  d.packed.seal(0);
  if (const int64_t held = staged.table(0).paged; held < first + n) {
    SE_CHECK(held == first, "slices come in order");
    SE_TRY(d.store.append(staged, d.packed.pos));
  }
  d.scratch.reset();
  d.step.assign(1, DriverRow{&seq, n, false, seq.logical_ + first + n == seq.prompt_});
  d.tokens = n;
  d.families.clear();
  d.add_to_family(0, d.step[0]);
  d.make_families();
  Family& f = d.families[0];
  f.tables->add_past(0, *seq.kv_, seq.logical_);
  f.staged = std::make_unique<StepTables>(plan, *plan.staging_layout, d.base(), 1, n, true);
  f.staged->add_past(0, staged, seq.logical_, first);
  f.staged->add_staged_places(staged.table(0), first, 0, n);
  d.slice.seq = &seq, d.slice.layer = layer, d.slice.first = first, d.slice.n = n,
  d.slice.last = d.step[0].last_chunk;
  d.slice.votes.clear();
  return ok();
}

// A windowed group's survivors of the prompt. If none of the old tokens is seen again the row begins anew, on
// a page's boundary; else it grows, and commit_prompt drops what has left the window.
std::vector<int32_t> Driver::Impl::window_survivors(const PlanSequence& seq, int group) const {
  const KvLayout& layout = *seq.plan().layout;
  const int64_t old = seq.kv_->table(group).tokens(), n = seq.staged_->table(0).paged;
  const int64_t skip = window_skips(seq.logical_, n, layout.groups()[size_t(group)].window, layout.page());
  std::vector<int32_t> kept(size_t(skip > 0 ? n - skip : old + n));
  std::iota(kept.begin(), kept.end(), int32_t(old + n - int64_t(kept.size())));
  return kept;
}

// Writes the survivors of a layer (ordinals over paged, tail and staged tokens) through the codec into the
// group's new table.
Status Driver::Impl::store_survivors(int layer, const std::vector<int32_t>& kept) {
  PlanSequence& seq = *slice.seq;
  const Plan& plan = seq.plan();
  const LayerKv& l = model.layers[size_t(layer)];
  const int g = plan.layout->group_of(layer);
  const KvTable& old = seq.kv_->table(g);
  const int64_t paged = old.paged, ring = plan.store_spec.tail;
  // A window that has passed all old tokens leaves the ring's behind too; keepers never do.
  const bool anew = plan.layout->groups()[size_t(g)].window > 0 && (kept.empty() || kept[0] >= old.tokens());
  const int64_t tail = anew ? 0 : old.tail;
  const auto new_from = std::lower_bound(kept.begin(), kept.end(), int32_t(old.tokens()));
  const auto old_to = std::lower_bound(kept.begin(), kept.end(), int32_t(paged));
  const std::vector<int32_t> survivors(kept.begin(), old_to), fresh(new_from, kept.end());  // fresh: ordinals
  const int64_t n = int64_t(fresh.size());
  const int64_t encoded = tokens_to_encode(plan.store_spec, tail + n);

  // Without old tokens the sequence's own ring is free to write to: no step reads it before commit_prompt.
  if (ring > 0 && seq.logical_ > 0 && !seq.pending_block_) {
    SE_ASSIGN(seq.pending_block_, store.clone_block(*seq.kv_));
  }
  if (!seq.pending_made_[size_t(g)]) {
    std::vector<int32_t> positions(old.positions.end() - tail, old.positions.end());  // then the new ones
    for (int32_t o : fresh) positions.push_back(int32_t(seq.logical_ + o - old.tokens()));
    const std::span<const int32_t> all(positions);
    SE_ASSIGN(seq.pending_[size_t(g)],
              store.stage_table(
                  *seq.kv_, {g, survivors}, all.first(size_t(encoded)), all.subspan(size_t(encoded))));
    if (ring > 0) seq.pending_[size_t(g)].tail_first = (old.tail_first + encoded) % ring;
    seq.pending_made_[size_t(g)] = 1;
  }

  Alone alone(seq, *seq.kv_, plan, base(), n);
  if (!anew) alone.tables.add_past(0, *seq.kv_, seq.logical_);
  const int64_t block = seq.pending_block_ ? seq.pending_block_.id() : seq.kv_->item();
  alone.tables.add_places(0, g, seq.pending_[size_t(g)], int64_t(survivors.size()), tail, 0, n, block);

  // k, v of the survivors, gathered from the staged pages.
  const std::array<PlanSequence*, 1> seqs{&seq};
  StepTables staged(plan, *plan.staging_layout, base(), 1, 0, true);
  staged.add_past(0, *seq.staged_, seq.logical_);
  DeviceStep p = device_step(Phase::kCommit,
                             alone.packed.view,
                             alone.list,
                             staged,
                             *plan.plain,
                             *plan.plain,
                             seqs,
                             alone.picked,
                             commit_scratch);
  const StoredKv all = plan.plain->values(layer, staged.past(layer), !l.latent(), p);
  Present x;
  const TensorView keys = commit_scratch.take(DType::kF32, {n, l.kv_heads, l.k_dim});
  TensorView values;
  if (!l.latent()) values = commit_scratch.take(DType::kF32, {n, l.kv_heads, l.v_dim});
  set_keys(x, l, keys, values);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t o = fresh[size_t(i)] - old.tokens();
    std::memcpy(x.k.at<char>(i), all.k.at<char>(o), size_t(x.k.stride[0]));
    if (!l.latent()) std::memcpy(x.v.at<char>(i), all.v.at<char>(o), size_t(x.v.stride[0]));
  }
  DeviceStep s = device_step(Phase::kPrefill,
                             alone.packed.view,
                             alone.list,
                             alone.tables,
                             *plan.store,
                             *plan.store,
                             seqs,
                             alone.picked,
                             commit_scratch);
  if (n > 0 || encoded > 0) plan.store->write(layer, x, s);
  return ok();
}

Status Driver::end_slice() {
  Impl& d = *impl_;
  PlanSequence& seq = *d.slice.seq;
  const Plan& plan = seq.plan();
  const int layer = d.slice.layer;
  if (!d.slice.last) return ok();
  d.commit_scratch.reset();
  const LayerKv& l = d.model.layers[size_t(layer)];
  const int g = plan.layout->group_of(layer);
  const KvTable& old = seq.kv_->table(g);
  const int64_t staged_n = seq.staged_->table(0).paged, ordinals = old.tokens() + staged_n;

  std::vector<int32_t>& kept = seq.kept_[size_t(g)];
  const auto finish = [&] {
    const Status s = d.store_survivors(layer, kept);
    if (layer == plan.layout->groups()[size_t(g)].layers.back()) std::vector<int32_t>().swap(kept);
    d.step.clear();
    d.families.clear();
    return s;
  };
  if (plan.layout->groups()[size_t(g)].window > 0) {
    if (!seq.pending_made_[size_t(g)]) kept = d.window_survivors(seq, g);
    return finish();
  }
  if (!seq.pending_made_[size_t(g)]) {
    const std::array<PlanSequence*, 1> seqs{&seq};
    Alone alone(seq, *seq.kv_, plan, d.base(), 0);
    alone.tables.add_past(0, *seq.kv_, seq.logical_);
    StepTables staged(plan, *plan.staging_layout, d.base(), 1, 0, true);
    staged.add_past(0, *seq.staged_, seq.logical_);
    DeviceStep s = d.device_step(Phase::kCommit,
                                 alone.packed.view,
                                 alone.list,
                                 alone.tables,
                                 *plan.store,
                                 *plan.store,
                                 seqs,
                                 alone.picked,
                                 d.commit_scratch);
    DeviceStep p = d.device_step(Phase::kCommit,
                                 alone.packed.view,
                                 alone.list,
                                 staged,
                                 *plan.plain,
                                 *plan.plain,
                                 seqs,
                                 alone.picked,
                                 d.commit_scratch);
    AttentionView view;
    if (alone.tables.any_past(layer)) plan.store->parts(layer, alone.tables.past(layer), view, s);
    plan.plain->parts(layer, staged.past(layer), view, p);
    const int64_t w = int64_t(d.slice.votes.size()) / (int64_t(l.q_heads) * l.k_dim);
    const TensorView queries = TensorView::of(d.slice.votes.data(), DType::kF32, {w, l.q_heads, l.k_dim});
    std::vector<int64_t> last;
    for (int64_t i = 0; i < w; ++i) last.push_back(ordinals - w + i);
    const SeqView v = d.facts(seq, false, true, staged_n);
    d.pick(seq, layer, v, view, s, queries, last, true, old.paged, old.tail, ordinals, kept);
  }
  const SeqView v = d.facts(seq, false, true, staged_n);
  int64_t target = v.resident[size_t(layer)];
  for (const auto& k : plan.keep) {
    if (k->due(layer, v)) target = std::min(target, k->resident(layer, v)), ++seq.counters_.picks;
  }
  seq.pending_excess_.resize(d.model.layers.size());
  seq.pending_excess_[size_t(layer)] = std::max<int64_t>(0, int64_t(kept.size()) - target);
  seq.counters_.dropped_tokens += ordinals - int64_t(kept.size());
  return finish();
}

Status Driver::commit_prompt(PlanSequence& seq) {
  Impl& d = *impl_;
  SE_CHECK(seq.staged_ &&
               std::all_of(seq.pending_made_.begin(), seq.pending_made_.end(), [](uint8_t m) { return m; }),
           "every layer has been through its last slice");
  const int64_t n = seq.staged_->table(0).paged;
  d.store.install(*seq.kv_, std::move(seq.pending_), std::move(seq.pending_block_));
  seq.excess_ = seq.pending_excess_;
  abandon_prompt(seq);
  seq.logical_ += n;
  if (seq.expanded_) seq.expanded_tokens_ += n;
  d.drop_pages(seq);
  d.index_units(seq);
  return ok();
}

void Driver::abandon_prompt(PlanSequence& seq) {
  seq.staged_.reset();
  seq.pending_.clear();
  seq.pending_made_.clear();
  seq.kept_.clear();
  seq.pending_block_ = {};
  if (impl_->slice.seq == &seq) impl_->slice.seq = nullptr;
}

}  // namespace se
