#include <algorithm>

#include "base/fmt.h"
#include "kbench/attention_step.h"
#include "kbench/prefill_step.h"

namespace se::kbench {
namespace {

// Of the largest output of a head: weights carry BF16's 2^-9 each, which their sum averages out as it does
// the values themselves; f32 sums add less. (Logarithms of the sums count ten times: no weight is rounded
// there.)
constexpr double kTolerance = 1.0 / 256;

void check_case(Bench& b, const std::string& what, const PrefillCase& c) {
  PrefillStep step(c, b);
  step.enqueue(b);
  b.stream().synchronize();
  const double worst = step.error(b, 700);
  b.check("prefill " + what, worst <= kTolerance, worst, true);
}

// A row alone and the same row behind others, on another grid: the same bits.
void check_batch_mates(Bench& b) {
  PrefillCase alone;
  alone.rows = {{tokens_in_runs(333, 16), 77}};
  PrefillCase among = alone;  // the first row keeps its q; its pages are other ones
  among.rows.push_back({tokens_in_runs(64, 16), 200});
  among.rows.push_back({{}, 5, 3});
  PrefillStep one(alone, b), many(among, b);
  // The same past: page by page from the one to the other.
  const auto runs_of = [](const PrefillStep& s) { return download<int64_t>(s.part().index.runs.data, 21); };
  const auto from = runs_of(one), to = runs_of(many);
  for (size_t i = 0; i < from.size(); ++i)
    SE_CUDA(cudaMemcpy(many.part().planes[0].ptr<char>() + run_slot(to[i]) / 16 * 256,
                       one.part().planes[0].ptr<char>() + run_slot(from[i]) / 16 * 256,
                       32768,
                       cudaMemcpyDeviceToDevice));
  // The last run is partial and may begin elsewhere in its page: have it begin at the same place.
  const int64_t last = run(run_slot(to[20]) / 16 * 16 + run_slot(from[20]) % 16, run_tokens(to[20]));
  SE_CUDA(cudaMemcpy(many.part().index.runs.ptr<int64_t>() + 20, &last, 8, cudaMemcpyHostToDevice));
  many.grid = 3;
  one.enqueue(b), many.enqueue(b);
  b.stream().synchronize();
  const auto x = one.out(), y = many.out();
  b.check("prefill: no batch mate and no grid shows", std::equal(x.begin(), x.end(), y.begin()), 0, true);
}

void time_case(Bench& b, const std::string& shape, const PrefillCase& c) {
  PrefillStep step(c, b);
  step.enqueue(b);
  b.stream().synchronize();
  const double worst = step.error(b, 12);
  b.check("prefill " + shape, worst <= kTolerance, worst, true);
  b.report_flops("attend_prefill", shape, step.flops(), worst, b.measure([&] { step.enqueue(b); }));
}

}  // namespace

void prefill_checks(Bench& b) {
  PrefillCase c;
  for (int past : {0, 1, 15, 16, 17, 127, 128, 129, 1000}) c.rows.push_back({tokens_in_runs(past, 16), 3});
  check_case(b, "odd pasts, 3 tokens", c);
  c.rows.clear();
  for (int tokens : {1, 15, 16, 17, 127, 128, 129}) c.rows.push_back({tokens_in_runs(160, 16), tokens});
  check_case(b, "odd chunks", c);
  c.reversed = true, c.rows = {{tokens_in_runs(4000, 16), 600}, {{}, 1}, {{16, 5, 0, 16}, 64, 30}};
  check_case(b, "a long row, an empty one, runs with holes, neighbours seen", c);
  c.with_present = false;
  check_case(b, "no present", c);
  c.with_present = true, c.per_head = true;
  check_case(b, "a table per KV head", c);
  c.per_head = false, c.group = 5, c.kv_heads = 3;
  check_case(b, "3 KV heads, groups of 5", c);
  c.group = 1, c.kv_heads = 2;
  check_case(b, "groups of 1", c);
  c.group = 12, c.kv_heads = 1;
  check_case(b, "groups of 12", c);
  c.group = 8, c.kv_heads = 4, c.page = c.unit = 64;
  c.rows = {{tokens_in_runs(1000, 64), 100}, {{64, 3, 64, 17, 1, 64}, 20}};
  check_case(b, "pages of 64, partial runs in the middle", c);
  c.page = 16, c.unit = 1, c.rows = {{tokens_in_runs(300, 1), 40}};
  check_case(b, "single tokens", c);
  c.page = c.unit = 16, c.q_scale = 40, c.rows = {{tokens_in_runs(700, 16), 150}};
  check_case(b, "sharp weights", c);
  check_batch_mates(b);
}

void prefill_cases(Bench& b) {
  PrefillCase c;
  c.rows = {{tokens_in_runs(122880, 16), 8192}};
  time_case(b, "32/4 heads x 128, 8,192 tokens over 122,880 paged", c);
  c.rows = {{{}, 8192}};
  time_case(b, "32/4 heads x 128, 8,192 tokens over nothing", c);
  c.rows = {{tokens_in_runs(30720, 16), 2048}};
  time_case(b, "32/4 heads x 128, 2,048 tokens over 30,720 paged", c);
}

}  // namespace se::kbench
