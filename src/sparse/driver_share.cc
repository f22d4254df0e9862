// One prompt for several plans: pages shared under an equal payload, or a layer of plain K/V handed to a
// layer-major prompt.
#include <algorithm>

#include "sparse/driver_impl.h"

namespace se {

bool Driver::can_attach(const Plan& plan, const PlanSequence& from) {
  return plan.state_id == from.plan().state_id && plan.keep.empty() && plan.store_spec.tail == 0 &&
         !plan.prefill && plan.layout->sequence_bytes() == 0 && !from.prefilling() && from.shareable();
}

Result<std::unique_ptr<PlanSequence>> Driver::attach(std::shared_ptr<const Plan> plan,
                                                     const PlanSequence& from) {
  SE_CHECK(can_attach(*plan, from), "{} cannot go on from {}", plan->text, from.plan().text);
  auto seq = std::make_unique<PlanSequence>();
  SE_ASSIGN(seq->kv_, impl_->store.attach(*from.kv_, plan->layout));
  seq->id_ = impl_->next_id++;
  seq->excess_.assign(impl_->model.layers.size(), 0);
  seq->logical_ = seq->turn_start_ = seq->attached_ = from.logical_;
  seq->expanded_tokens_ = from.expanded_tokens_;
  seq->plan_ = std::move(plan);
  impl_->index_units(*seq);
  return seq;
}

bool Driver::can_seed(const Plan& plan, const PlanSequence& from) {
  const Plan& dense = from.plan();
  return plan.staging == Staging::kLayer && !plan.prefill && !dense.prefill && dense.keep.empty() &&
         !from.prefilling() && from.shareable() && dense.store->family() == plan.plain->family() &&
         std::all_of(plan.model.layers.begin(), plan.model.layers.end(), [](const LayerKv& l) {
           return l.kind == LayerKind::kFull;
         });
}

Status Driver::seed_slice(PlanSequence& seq, int layer, const PlanSequence& from) {
  Impl& d = *impl_;
  const Plan &plan = seq.plan(), &dense = from.plan();
  SE_CHECK(can_seed(plan, from) && seq.logical_ == 0 && from.logical_ < seq.prompt_,
           "{} does not begin as {}",
           plan.text,
           dense.text);
  SE_TRY(begin_slice(seq, layer, 0, from.logical_));
  d.commit_scratch.reset();
  Alone donor(from, *from.kv_, dense, d.base(), 0);
  donor.tables.add_past(0, *from.kv_, from.logical_);
  PlanSequence* self = &seq;
  const std::array<PlanSequence*, 1> seqs{self};
  DeviceStep read = d.device_step(Phase::kCommit,
                                  donor.packed.view,
                                  donor.list,
                                  donor.tables,
                                  *dense.store,
                                  *dense.store,
                                  seqs,
                                  donor.picked,
                                  d.commit_scratch);
  const LayerKv& l = d.model.layers[size_t(layer)];
  const StoredKv all = dense.store->values(layer, donor.tables.past(layer), !l.latent(), read);
  Family& f = d.families.front();
  DeviceStep write = d.device_step(
      Phase::kPrefill, d.packed.view, f.list, *f.staged, *plan.plain, *plan.plain, seqs, f.picked, d.scratch);
  Present x;
  set_keys(x, l, all.k, all.v);
  plan.plain->write(layer, x, write);
  d.step.clear();
  d.families.clear();
  return ok();
}

}  // namespace se
