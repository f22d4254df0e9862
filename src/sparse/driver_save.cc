// A sequence of a plan in a file: what outlives a turn, and its KV.
#include "base/checked_file.h"
#include "sparse/driver_impl.h"

namespace se {

void Driver::save(const PlanSequence& seq, CheckedWriter& to) const {
  SE_CHECK(!seq.prefilling(), "a sequence is saved between turns");
  to.number(seq.logical_), to.number(seq.expanded_tokens_);
  to.number(seq.counters_.decode_steps), to.number(seq.counters_.read_tokens);
  to.number(seq.counters_.last_read_tokens), to.number(seq.counters_.picks);
  to.number(seq.counters_.dropped_tokens);
  for (int64_t e : seq.excess_) to.number(e);
  impl_->store.save(*seq.kv_, to);
}

Result<std::unique_ptr<PlanSequence>> Driver::load(std::shared_ptr<const Plan> plan, CheckedReader& from) {
  constexpr int64_t kMost = INT64_MAX;
  auto seq = std::make_unique<PlanSequence>();
  SE_ASSIGN(seq->logical_, from.number(0, INT32_MAX, "tokens of the sequence"));
  SE_ASSIGN(seq->expanded_tokens_, from.number(0, seq->logical_, "tokens attended in head space"));
  KvCounters& c = seq->counters_;
  for (int64_t* n : {&c.decode_steps, &c.read_tokens, &c.last_read_tokens, &c.picks, &c.dropped_tokens}) {
    SE_ASSIGN(*n, from.number(0, kMost, "a counter"));
  }
  seq->excess_.resize(impl_->model.layers.size());
  for (int64_t& e : seq->excess_) {
    SE_ASSIGN(e, from.number(0, seq->logical_, "tokens over the budget"));
  }
  SE_ASSIGN(seq->kv_, impl_->store.load(from, plan->layout, seq->logical_));
  for (size_t l = 0; l < seq->excess_.size(); ++l) {
    const int group = plan->layout->group_of(int(l));
    const int64_t held = group < 0 ? 0 : seq->kv_->resident(int(l));
    if (seq->excess_[l] > held)
      return from.bad(format("layer {}: {} tokens over the budget of {} held", l, seq->excess_[l], held));
  }
  seq->id_ = impl_->next_id++;
  seq->turn_start_ = seq->prompt_ = seq->logical_;
  seq->plan_ = std::move(plan);
  return seq;
}

}  // namespace se
