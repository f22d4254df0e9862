// bench/kbench/attention_step.h -- one decode step on the device over made-up paged K/V.
#pragma once
#include <string>
#include <vector>

#include "kbench/kbench.h"
#include "kernels/attention/decode_cuda.h"

namespace se::kbench {

struct Row {
  std::vector<int> runs;  // tokens of each
  int split = 2048;
  int present = 1;  // tokens, the row's own included
};
struct Case {
  std::vector<Row> rows;
  int kv_heads = 4, group = 8, dim = 128, page = 16, unit = 16;
  cuda::DecodeType type = cuda::DecodeType::kBF16;
  bool with_present = true, shuffle = true, per_head = false;
  uint64_t seed = 1;
};

// Pages as the store lays them out: one component after another, each [head][item], a page id every 256
// bytes.
class Step {
 public:
  Step(const Case& c, Bench& b);
  void enqueue(Bench& b) { cuda::attend_decode(args_, part_, plan_, ahead, b.stream()); }
  // Behind a kernel that lets it start and only then writes all that `ahead` does not exclude.
  void enqueue_after_late_writer(Bench& b);
  cuda::DecodePlan& plan() { return plan_; }
  std::vector<float> out() const { return download<float>(args_.out.data, args_.out.numel()); }
  double bytes() const;  // the past's K and V, their scales, and the run table, each read once
  // The greatest of |out - ref| / max |ref| over a head, and of |lse - ref| / max(1, |ref|), over all rows
  // and heads; 1e30 where something was not written.
  double error(Bench& b) const;
  cuda::DecodeAhead ahead = cuda::DecodeAhead::kNothing;

 private:
  int64_t pick(int64_t below, int64_t i) const;
  int64_t lay_out();  // planes of part_; bytes of a page
  void fill(Bench& b);

  Case c_;
  int heads_;
  int64_t page_bytes_ = 0, token_bytes_ = 0;  // of a token: all components, all heads
  cuda::Buffer arena_;
  std::vector<cuda::Buffer> held_;
  StepRows rows_;
  Present present_;
  AttendArgs args_;
  AttentionPart part_;
  cuda::DecodePlan plan_;
  int64_t places_ = 1;
};

std::vector<int> tokens_in_runs(int tokens, int unit);
const char* name_of(cuda::DecodeType type);

}  // namespace se::kbench
