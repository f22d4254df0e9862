// bench/kbench/prefill_step.h -- one prefill step on the device over made-up paged K/V in BF16.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kbench/kbench.h"
#include "kernels/attention/prefill_cuda.h"

namespace se::kbench {

struct PrefillRow {
  std::vector<int> runs;  // tokens of each
  int tokens = 1;         // of the step
  int before = 0;         // present tokens of other rows, just before its own, that it sees too
};
struct PrefillCase {
  std::vector<PrefillRow> rows;
  int kv_heads = 4, group = 8, page = 16, unit = 16;
  bool with_present = true, per_head = false, reversed = false;  // reversed: the list against the rows' order
  float q_scale = 2;
  // > 0: this share of the past's pages of 128 tokens (page and unit divide 128) has keys that all queries
  // like.
  double planted = 0;
  uint64_t seed = 1;
};

class PrefillStep {
 public:
  PrefillStep(const PrefillCase& c, Bench& b);
  void enqueue(Bench& b) { cuda::attend_prefill(args_, part_, grid, *workspace_, b.stream()); }
  int tokens() const { return int(args_.q.shape[0]); }
  const AttendArgs& args() const { return args_; }
  const AttentionPart& part() const { return part_; }
  cuda::Workspace& workspace() { return *workspace_; }
  const PrefillCase& shape() const { return c_; }
  const std::vector<int32_t>& q_start() const { return q_start_; }
  std::vector<float> out() const { return download<float>(args_.out.data, args_.out.numel()); }
  double flops() const;                       // of the products with keys that are seen
  int64_t places() const { return places_; }  // at most, of a row
  // As Step::error, over at most `most` tokens of the step.
  double error(Bench& b, int most) const;
  // out and lse of these (row, token) against out [tokens, q_heads, 128] and lse.
  double compare(const std::vector<int2>& which,
                 const std::vector<double>& want,
                 const std::vector<double>& want_l) const;
  int grid = 0;

 private:
  PrefillCase c_;
  cuda::Buffer arena_;
  std::vector<cuda::Buffer> held_;
  StepRows rows_;
  Present present_;
  AttendArgs args_;
  AttentionPart part_;
  std::optional<cuda::Workspace> workspace_;
  std::vector<int32_t> q_start_{0};
  int64_t places_ = 1;
};

}  // namespace se::kbench
