// What a traced request keeps and reads.
#include "engine/engine_impl.h"

namespace se {

bool Engine::Impl::trace_step(const StepWork& work) {
  bool any = false, weights = false;
  for (const Job* job : work.decode) {
    any = any || job->request.trace, weights = weights || (job->request.trace && job->request.trace_weights);
  }
  if (!any) return false;
  runner->driver().trace(
      [&decode = work.decode](const KvRead& read) {
        for (Job* job : decode) {
          if (job->seq.get() != read.seq || !job->request.trace || !job->callbacks.on_read) continue;
          ReadTrace t{int64_t(job->answer.ids.size()), read.layer, read.positions, {}};
          if (job->request.trace_weights) t.weights = read.weights;
          job->callbacks.on_read(t, job->choice);
        }
      },
      weights);
  return true;
}

void Engine::Impl::tell_kept(const Job& job) const {
  const KvSequence& kv = job.seq->kv();
  for (int l = 0; l < info.layers; ++l) {
    if (const int g = kv.layout().group_of(l); g >= 0) job.callbacks.on_kept(l, kv.table(g).positions);
  }
}

}  // namespace se
