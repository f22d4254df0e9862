// bench/kbench/prefill_step.h -- one prefill step on the device over made-up paged K/V.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kbench/attention_step.h"
#include "kernels/attention/prefill_cuda.h"

namespace se::kbench {

struct PrefillRow {
  std::vector<int> runs;  // tokens of each
  int tokens = 1;         // of the step
  int before = 0;         // present tokens of other rows, just before its own, that it sees too
  int split = 0;          // tokens
  int gone = 0;           // tokens before the first run, with a window
};
struct PrefillCase {
  std::vector<PrefillRow> rows;
  int kv_heads = 4, group = 8, page = 16, unit = 16;
  cuda::DecodeType type = cuda::DecodeType::kBF16;
  bool with_present = true, per_head = false, reversed = false;  // reversed: the list against the rows' order
  float q_scale = 2;
  int window = 0;
  // > 0: this share of the past's pages of 128 tokens (page and unit divide 128) has keys that all queries
  // like.
  double planted = 0;
  uint64_t seed = 1;
};

class PrefillStep {
 public:
  PrefillStep(const PrefillCase& c, Bench& b);
  void enqueue(Bench& b) { cuda::attend_prefill(args_, part_, plan, *workspace_, b.stream()); }
  int tokens() const { return int(args_.q.shape[0]); }
  const AttendArgs& args() const { return args_; }
  const AttentionPart& part() const { return part_; }
  cuda::Workspace& workspace() { return *workspace_; }
  const PrefillCase& shape() const { return c_; }
  int64_t page_bytes() const { return page_bytes_; }
  const std::vector<int32_t>& q_start() const { return q_start_; }
  std::vector<float> out() const { return download<float>(args_.out.data, args_.out.numel()); }
  double flops() const;                                    // of the products with keys that are seen
  double bytes() const { return double(arena_.bytes()); }  // of the past
  int64_t places() const { return places_; }               // at most, of a row
  // As Step::error, over at most `most` tokens of the step. by_terms: relative to the sum of the sizes of
  // what is added up, the greatest of a head, not to its greatest output.
  double error(Bench& b, int most, bool by_terms = false) const;
  // out and lse of these (row, token) against out [tokens, q_heads, 128] and lse; size: as out, what errors
  // are relative to.
  double compare(const std::vector<int2>& which,
                 const std::vector<double>& want,
                 const std::vector<double>& want_l,
                 const std::vector<double>& size) const;
  cuda::PrefillPlan plan;

 private:
  PrefillCase c_;
  int64_t page_bytes_ = 0;
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
