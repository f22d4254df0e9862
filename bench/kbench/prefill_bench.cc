#include <algorithm>
#include <deque>

#include "base/fmt.h"
#include "kbench/attention_step.h"
#include "kbench/prefill_step.h"

namespace se::kbench {
namespace {

// Of the largest output of a head: weights carry BF16's 2^-8 each at most, which their sum averages out as it
// does the values themselves; f32 sums add less. (Logarithms of the sums count ten times: no weight is
// rounded there.)
constexpr double kTolerance = 1.0 / 256;

// Codes stand for numbers of any distribution, whose sums may cancel: then relative to the sizes of what is
// added up, of which a weight's rounding moves 2^-8 at most; f32 sums move little.
double check(Bench& b, const std::string& what, const PrefillStep& step, int most) {
  const bool codes = step.shape().type != cuda::DecodeType::kBF16;
  const double worst = step.error(b, most, codes);
  b.check("prefill " + what, worst <= kTolerance, worst, true);
  return worst;
}

void check_case(Bench& b, const std::string& what, const PrefillCase& c) {
  if (!b.next_is_ours()) return;
  PrefillStep step(c, b);
  step.enqueue(b);
  b.stream().synchronize();
  check(b, what, step, b.few() ? 40 : 700);
}

// A row alone and the same row behind others, on another grid: the same bits.
void check_batch_mates(Bench& b, cuda::DecodeType type, int split, int window) {
  if (!b.next_is_ours()) return;
  PrefillCase alone;
  alone.window = window, alone.type = type;
  alone.page = alone.unit = type == cuda::DecodeType::kKivi4 ? 32 : 16;
  alone.rows = {{tokens_in_runs(352, alone.unit), 77, 0, split}};
  PrefillCase among = alone;  // the first row keeps its q; its pages are other ones
  among.rows.push_back({tokens_in_runs(64, alone.unit), 200, 0, 128});
  among.rows.push_back({{}, 5, 3});
  PrefillStep one(alone, b), many(among, b);
  // The same past: page by page from the one to the other.
  const int64_t pages = 352 / alone.unit;
  const auto runs_of = [&](const PrefillStep& s) {
    return download<int64_t>(s.part().index.runs.data, pages);
  };
  const auto from = runs_of(one), to = runs_of(many);
  for (size_t i = 0; i < from.size(); ++i)
    SE_CUDA(cudaMemcpy(many.part().planes[0].ptr<char>() + run_slot(to[i]) / alone.page * 256,
                       one.part().planes[0].ptr<char>() + run_slot(from[i]) / alone.page * 256,
                       size_t(one.page_bytes()),
                       cudaMemcpyDeviceToDevice));
  many.plan.grid = 3;
  one.enqueue(b), many.enqueue(b);
  b.stream().synchronize();
  const auto x = one.out(), y = many.out();
  b.check(
      format(
          "prefill {}: no batch mate and no grid shows, split {}, window {}", name_of(type), split, window),
      std::equal(x.begin(), x.end(), y.begin()),
      0,
      true);
}

constexpr cuda::DecodeType kCodes[] = {
    cuda::DecodeType::kF16, cuda::DecodeType::kE4M3, cuda::DecodeType::kE5M2, cuda::DecodeType::kKivi4};

void check_codes(Bench& b, cuda::DecodeType type) {
  const bool kivi = type == cuda::DecodeType::kKivi4;
  const std::string name = name_of(type);
  PrefillCase c;
  c.type = type, c.page = c.unit = kivi ? 32 : 16;
  for (int past : {0, 32, 64, 128, 160, 1024}) c.rows.push_back({tokens_in_runs(past, c.unit), 3});
  if (!kivi)
    for (int past : {1, 15, 17, 63, 65, 127, 129, 1000}) c.rows.push_back({tokens_in_runs(past, 16), 20});
  check_case(b, name + ": odd pasts", c);
  c.reversed = true, c.rows = {{tokens_in_runs(4000, c.unit), 300, 0, 512}, {{}, 1}, {{32, 0, 32}, 64, 30}};
  if (!kivi) c.rows.push_back({{16, 5, 0, 16}, 64, 30});
  c.per_head = true;
  check_case(b, name + ": a split, holes, a table per KV head", c);
  c.per_head = false, c.with_present = false, c.group = 5, c.kv_heads = 3;
  check_case(b, name + ": no present, groups of 5", c);
  c.with_present = true, c.group = 8, c.kv_heads = 4, c.page = c.unit = 64;
  c.rows = {{tokens_in_runs(1024, 64), 100}, {{64, 32, 64, 32}, 20}};
  check_case(b, name + ": pages of 64", c);
  c.page = c.unit = kivi ? 32 : 1, c.rows = {{tokens_in_runs(320, c.unit), 40}}, c.q_scale = 20;
  check_case(b, name + ": sharp weights", c);
  c.page = c.unit = 32, c.q_scale = 2, c.window = 100, c.rows = {{tokens_in_runs(640, 32), 90, 0, 128, 32}};
  check_case(b, name + ": a window", c);
}

// Pages ahead of a window that have gone do not show.
void check_gone(Bench& b) {
  if (!b.next_is_ours()) return;
  PrefillCase whole;
  whole.window = 150;
  whole.rows = {{tokens_in_runs(600, 16), 90, 0, 256}};
  PrefillStep all(whole, b);
  all.enqueue(b);
  b.stream().synchronize();
  const auto want = all.out();
  // The same step with 27 runs fewer.
  const int64_t start = 27, gone = 27 * 16;
  const int32_t left = int32_t(whole.rows[0].runs.size()) - 27;
  SE_CUDA(cudaMemcpy(all.part().index.start.data, &start, 8, cudaMemcpyHostToDevice));
  SE_CUDA(cudaMemcpy(all.part().index.first.data, &gone, 8, cudaMemcpyHostToDevice));
  SE_CUDA(cudaMemcpy(all.part().index.counts.data, &left, 4, cudaMemcpyHostToDevice));
  all.enqueue(b);
  b.stream().synchronize();
  b.check("prefill: pages that have gone do not show", want == all.out(), 0, true);
}

void time_case(Bench& b, const std::string& shape, const PrefillCase& c) {
  PrefillStep step(c, b);
  step.enqueue(b);
  b.stream().synchronize();
  const double worst = check(b, shape, step, 12);
  b.report_flops("attend_prefill", shape, step.flops(), worst, b.measure([&] { step.enqueue(b); }));
  if (step.tokens() > 1024) return;  // hundreds of microseconds: a launch does not show
  std::deque<PrefillStep> steps;
  const int copies = std::min(8, copies_in_a_row(step.bytes()));
  for (int i = 0; i < copies; ++i) {
    PrefillCase own = c;
    own.seed = c.seed + 100 * uint64_t(i + 1);
    steps.emplace_back(own, b);
  }
  const Stats s = b.measure_in_a_row(copies, [&](int i) { steps[size_t(i)].enqueue(b); });
  b.report_flops("attend_prefill in a row", shape, step.flops(), worst, s);
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
  c.q_scale = 2;
  c.rows = {{tokens_in_runs(5000, 16), 64, 0, 1024}, {{}, 200, 0, 128}, {tokens_in_runs(1, 16), 1, 0, 128}};
  c.rows.push_back({tokens_in_runs(300, 16), 70}), c.rows.push_back({tokens_in_runs(40, 16), 0, 0, 128});
  check_case(b, "splits and none, a row without tokens", c);
  c.per_head = true, c.rows.push_back({{16, 5, 0, 16}, 64, 30, 128});
  check_case(b, "splits, a table per KV head", c);
  c.with_present = false, c.rows.push_back({{}, 3, 0, 128});
  check_case(b, "splits, no present", c);
  c.with_present = true, c.per_head = false;
  for (int window : {1, 60, 200, 1000}) {
    c.window = window;
    c.rows = {{tokens_in_runs(900, 16), 150, 0, 0, 48},
              {tokens_in_runs(900, 16), 150, 0, 128, 32},
              {{}, 300},
              {{}, 300, 0, 256},
              {tokens_in_runs(17, 16), 1, 0, 0, 16000},
              {tokens_in_runs(40, 16), 33, 20, 0, 160},
              {tokens_in_runs(40, 16), 0, 0, 128}};
    check_case(b, format("a window of {}", window), c);
    c.group = window == 60 ? 1 : 8;
  }
  for (cuda::DecodeType type : kCodes) check_codes(b, type);
  check_batch_mates(b, cuda::DecodeType::kBF16, 0, 0);
  check_batch_mates(b, cuda::DecodeType::kBF16, 128, 0),
      check_batch_mates(b, cuda::DecodeType::kE4M3, 128, 0);
  check_batch_mates(b, cuda::DecodeType::kBF16, 256, 170),
      check_batch_mates(b, cuda::DecodeType::kKivi4, 256, 170);
  check_gone(b);
}

void prefill_cases(Bench& b) {
  constexpr int kPlaces = 131072;  // what rows grow to
  PrefillCase c;
  const auto time = [&](int tokens, int past) {
    c.page = c.unit = c.type == cuda::DecodeType::kKivi4 ? 32 : 16;
    const int split = cuda::prefill_split(tokens, c.kv_heads, c.group, kPlaces);
    c.rows = {{tokens_in_runs(past, c.unit), tokens, 0, split}};
    time_case(b,
              format("{} 32/4 heads x 128, {} tokens over {} paged{}{}",
                     name_of(c.type),
                     tokens,
                     past,
                     split > 0 ? format(", split {}", split) : "",
                     c.window > 0 ? format(", window {}", c.window) : ""),
              c);
  };
  for (int past : {122880, 0}) time(8192, past);
  time(2048, 30720);
  for (int past : {30720, 122880})
    for (int tokens : {64, 256, 512, 1024}) time(tokens, past);
  for (cuda::DecodeType type : {cuda::DecodeType::kF16, cuda::DecodeType::kE4M3, cuda::DecodeType::kKivi4}) {
    c.type = type;
    time(8192, 122880);
    if (type == cuda::DecodeType::kF16) continue;
    for (int past : {30720, 122880})
      for (int tokens : {64, 256}) time(tokens, past);
  }
  c.type = cuda::DecodeType::kBF16, c.window = 4096;
  time(8192, 122880);
}

}  // namespace se::kbench
