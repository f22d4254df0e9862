// engine/runner.h -- runs a step: packs ids, calls the model and the driver, hands logits back. No policy.
#pragma once
#include <functional>

#include "device/cpu/thread_pool.h"
#include "engine/scheduler.h"
#include "model/model.h"

namespace se {

class Runner {
 public:
  Runner(const Model& model, Compute compute, KvStore& store, Stream& stream);

  // Logits of one token, f32 [vocab], valid during the call. index: which prompt token (prompt rows), or -1
  // (decode row).
  using OnLogits = std::function<void(Job&, int64_t index, std::span<const float>)>;

  // Decode rows and chunks through all layers. Failure (kExhausted) leaves every job as it was. Jobs whose
  // eviction failed at commit are listed with the reason; they cannot go on.
  Status run(const StepWork& work, const OnLogits& on_logits, std::vector<std::pair<Job*, Status>>& failed);

  // Goes on with a sliced prompt for about `token_layers`; `through` is set when the whole prompt is.
  Status run_slices(Job& job, int64_t token_layers, const OnLogits& on_logits, bool& through);
  void abandon(Job& job);  // forgets a half-done prompt of a job (its sequence is as before where the plan is
                           // layer-major)

  Driver& driver() { return driver_; }
  int64_t bytes(const PlanSequence& seq) const { return driver_.bytes(seq); }

 private:
  Status run_layer_major(Job& job, int64_t budget, bool& through);
  Status run_fixed_chunk(Job& job, int64_t budget, bool& through);
  void prompt_logits(
      Job& job, const TensorView& x, int64_t first, bool to_the_end, const OnLogits& on_logits);
  // Head over rows of x [n, hidden] (copied), in blocks; wanted(i) says which rows.
  void head_rows(const TensorView& x,
                 std::span<const int64_t> rows,
                 const std::function<void(int64_t, std::span<const float>)>& use);

  const Model& model_;
  Compute compute_;
  Stream& stream_;
  Driver driver_, slicer_;  // a step of its own for slices: decode steps run between them
  Arena arena_, head_arena_;
  Buffer x_;
};

}  // namespace se
