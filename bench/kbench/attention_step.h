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

// The planes of a part as the store lays out its pages: one component after another, each [head][item], a
// page id every 256 bytes; and what is in them, random.
class Planes {
 public:
  Planes(cuda::DecodeType type, int kv_heads, int dim, int page)
      : type_(type), heads_(kv_heads), dim_(dim), page_(page) {}
  int64_t lay_out(char* arena, AttentionPart& part) const;  // bytes of a page
  int64_t token_bytes() const;                              // of all components and heads
  void fill(const cuda::Buffer& arena, const AttentionPart& part, uint64_t seed, Bench& b) const;

 private:
  cuda::DecodeType type_;
  int heads_, dim_, page_;
};

// A kernel that lets its successor start and only then writes all that `ahead` does not exclude of a decode
// step's input, wrong until then; results are poisoned. Holds what the kernel reads.
class LateWriter {
 public:
  void start(const StepRows& rows,
             const AttendArgs& args,  // with a present
             const AttentionPart& part,
             const cuda::Buffer& arena,
             cuda::DecodeAhead ahead,
             Bench& b);

 private:
  std::vector<cuda::Buffer> right_;
};

class Step {
 public:
  Step(const Case& c, Bench& b);
  void enqueue(Bench& b) { cuda::attend_decode(args_, part_, plan_, ahead, b.stream()); }
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

  Case c_;
  int heads_;
  Planes planes_;
  int64_t page_bytes_ = 0;
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
