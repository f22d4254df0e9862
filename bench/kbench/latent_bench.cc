// Decode attention over latents: checks and times.
#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "base/fmt.h"
#include "kbench/attention_step.h"
#include "kbench/reference.h"
#include "kernels/attention/latent_decode_cuda.h"

namespace se::kbench {
namespace {

constexpr int64_t kKey = cuda::kLatentKey, kValue = cuda::kLatentValue;
constexpr double kTolerance = 1e-4;  // as BF16 in attention_bench.cc: q and weights in two pieces

struct LatentCase {
  std::vector<Row> rows;
  int heads = 20, page = 16, unit = 16;
  bool with_present = true;
  uint64_t seed = 1;
};

TensorView on_device(void* p, DType d, std::initializer_list<int64_t> s) {
  return TensorView::of(p, d, s, DeviceKind::kCuda);
}

class LatentStep {
 public:
  LatentStep(const LatentCase& c, Bench& b);
  void enqueue(Bench& b) { cuda::attend_latent(args_, part_, plan_, ahead, b.stream()); }
  // Behind a kernel that lets it start and only then writes all that `ahead` does not exclude.
  void enqueue_after_late_writer(Bench& b);
  cuda::LatentPlan& plan() { return plan_; }
  std::vector<float> out() const { return download<float>(args_.out.data, args_.out.numel()); }
  double bytes() const;
  double error(Bench& b) const;  // as Step::error
  cuda::DecodeAhead ahead = cuda::DecodeAhead::kNothing;

 private:
  LatentCase c_;
  cuda::Buffer arena_;
  std::vector<cuda::Buffer> held_;
  StepRows rows_;
  Present present_;
  AttendArgs args_;
  AttentionPart part_;
  cuda::LatentPlan plan_;
  int64_t places_ = 1;
};

LatentStep::LatentStep(const LatentCase& c, Bench& b) : c_(c) {
  const int64_t page_bytes = (c.page * kKey * 2 + 255) / 256 * 256, rows = int64_t(c.rows.size());
  int64_t pages = 0, cap = 1, next = 0;
  for (const Row& r : c.rows) pages += int64_t(r.runs.size());
  arena_ = device_memory(std::max<int64_t>(pages, 1) * page_bytes);
  fill_random(arena_.data(), arena_.bytes() / 2, true, 1, c.seed, b.stream());
  part_.planes[0] = on_device(arena_.data(), DType::kBF16, {int64_t{1} << 38, c.page, 1, kKey});
  part_.planes[0].stride = {256, kKey * 2, c.page * kKey * 2, 2};
  part_.v_in_k = int(kValue);
  const auto pick = [&](int64_t below, int64_t i) {
    return std::min(below - 1,
                    int64_t((double(random_float(c.seed + 9, uint64_t(i))) * 0.5 + 0.5) * double(below)));
  };
  std::vector<int64_t> order(static_cast<size_t>(pages)), start, runs;
  for (int64_t i = 0; i < pages; ++i) order[size_t(i)] = i;
  for (int64_t i = pages - 1; i > 0; --i) std::swap(order[size_t(i)], order[size_t(pick(i + 1, 1000 + i))]);
  std::vector<int32_t> counts, q_start{0}, from, split, ids;
  int least = 1 << 30, token = 0;
  for (size_t r = 0; r < c.rows.size(); ++r) {
    const Row& row = c.rows[r];
    start.push_back(int64_t(runs.size())), counts.push_back(int32_t(row.runs.size()));
    for (int t : row.runs) {
      const int64_t within = t < c.page ? pick(c.page - t + 1, 77 + next) : 0;
      runs.push_back(se::run(order[size_t(next++)] * (page_bytes / 256) * c.page + within, t));
    }
    cap = std::max(cap, int64_t(row.runs.size()));
    from.push_back(std::max(0, token - (row.present - 1)));
    q_start.push_back(++token), split.push_back(row.split), least = std::min(least, row.split);
    ids.push_back(int32_t(c.rows.size() - 1 - r));  // a list in another order than the rows
  }
  places_ = cap * c.unit + rows;
  const auto put = [&](const auto& host) {
    held_.push_back(upload(host));
    return held_.back().data();
  };
  const auto floats = [&](int64_t n, float scale, uint64_t seed) {
    std::vector<float> x(static_cast<size_t>(n));
    for (size_t i = 0; i < x.size(); ++i) x[i] = scale * random_float(seed, i);
    return x;
  };
  runs.push_back(0);
  KvIndex& index = part_.index;
  index.runs = on_device(put(runs), DType::kI64, {int64_t(runs.size())});
  index.start = on_device(put(start), DType::kI64, {rows});
  index.counts = on_device(put(counts), DType::kI32, {rows});
  index.unit = c.unit, index.page = c.page, index.cap = cap;
  rows_.q_start = on_device(put(q_start), DType::kI32, {rows + 1});
  rows_.kv_from = on_device(put(from), DType::kI32, {rows});
  rows_.split = on_device(put(split), DType::kI32, {rows}), rows_.rows = rows_.decode_rows = int(rows);
  args_.rows = &rows_, args_.list.ids = on_device(put(ids), DType::kI32, {rows}), args_.list.cap = int(rows);
  args_.list.n = on_device(put(std::vector<int32_t>{int32_t(rows)}), DType::kI32, {1});
  args_.q = on_device(put(floats(rows * c.heads * kKey, 2, c.seed + 1)), DType::kF32, {rows, c.heads, kKey});
  args_.scale = float(1 / std::sqrt(256.0));
  present_.k = on_device(put(floats(rows * kKey, 1, c.seed + 2)), DType::kF32, {rows, 1, kKey});
  present_.v = present_.k, present_.v.shape[2] = kValue;
  if (c.with_present) args_.present = &present_;
  const std::vector<float> poison(size_t(rows * c.heads * kValue), std::numeric_limits<float>::quiet_NaN());
  args_.out = on_device(put(poison), DType::kF32, {rows, c.heads, kValue});
  args_.lse = on_device(
      put(std::vector<float>(poison.begin(), poison.begin() + rows * c.heads)), DType::kF32, {rows, c.heads});
  plan_ = cuda::plan_latent_decode(cap, c.unit, least, int(rows), c.heads);
  SE_CUDA(cudaDeviceSynchronize());
}

void LatentStep::enqueue_after_late_writer(Bench& b) {
  LateWriter late;
  late.start(rows_, args_, part_, arena_, ahead, b);
  enqueue(b);
  b.stream().synchronize();
}

double LatentStep::bytes() const {
  double tokens = 0, runs = 0;
  for (const Row& r : c_.rows) {
    for (int t : r.runs) tokens += t;
    runs += double(r.runs.size());
  }
  return tokens * double(kKey) * 2 + runs * 8;
}

double LatentStep::error(Bench& b) const {
  const int64_t rows = int64_t(c_.rows.size()), n = rows * c_.heads;
  cuda::Buffer scratch = device_memory(n * places_ * 8), out_on = device_memory(n * kValue * 8),
               lse_on = device_memory(n * 8);
  reference_latent(cuda::latent_params(args_, part_),
                   int(kKey),
                   int(kValue),
                   int(rows),
                   places_,
                   scratch.ptr<double>(),
                   out_on.ptr<double>(),
                   lse_on.ptr<double>(),
                   b.stream());
  b.stream().synchronize();
  const auto want = download<double>(out_on.data(), n * kValue), want_l = download<double>(lse_on.data(), n);
  const auto got = out(), got_l = download<float>(args_.lse.data, n);
  double worst = 0;
  for (size_t h = 0; h < want_l.size(); ++h) {
    double most = 1e-30;
    const size_t first = h * size_t(kValue);
    for (size_t d = 0; d < size_t(kValue); ++d) most = std::max(most, std::abs(want[first + d]));
    const bool empty = !(want_l[h] > -1e300);
    for (size_t d = 0; d < size_t(kValue); ++d) {
      const double miss = std::abs(double(got[first + d]) - want[first + d]);
      if (!(miss < 1e30)) return 1e30;
      worst = std::max(worst, empty ? miss : miss / most);
    }
    const double l = double(got_l[h]);
    if (empty ? !(l < -1e300) : !(std::abs(l) < 1e30)) return 1e30;
    if (!empty) worst = std::max(worst, std::abs(l - want_l[h]) / std::max(1.0, std::abs(want_l[h])));
  }
  return worst;
}

void check_case(Bench& b, const std::string& what, const LatentCase& c) {
  LatentStep step(c, b);
  step.enqueue(b);
  b.stream().synchronize();
  const double worst = step.error(b);
  b.check("latent " + what, worst <= kTolerance, worst, true);
}

void time_case(Bench& b, const std::string& shape, const LatentCase& c) {
  LatentStep step(c, b);
  step.enqueue(b);
  b.stream().synchronize();
  const double worst = c.rows.size() > 1 ? 0 : step.error(b);
  b.check("latent " + shape, worst <= kTolerance, worst);
  b.report("attend_latent", shape, step.bytes(), worst, b.measure([&] { step.enqueue(b); }));
  if (step.bytes() > 1e9) return;
  std::deque<LatentStep> all;
  for (int i = 0; i < copies_in_a_row(step.bytes()); ++i) {
    LatentCase other = c;
    other.seed = c.seed + 1 + uint64_t(i);
    all.emplace_back(other, b);
  }
  for (auto ahead : {cuda::DecodeAhead::kTables, cuda::DecodeAhead::kPast}) {
    for (LatentStep& s : all) s.ahead = ahead;
    const bool past = ahead == cuda::DecodeAhead::kPast;
    b.report(past ? "attend_latent in a row, the past ahead" : "attend_latent in a row, tables ahead",
             shape,
             step.bytes(),
             worst,
             b.measure_in_a_row(int(all.size()), [&](int i) { all[size_t(i)].enqueue(b); }));
  }
}

}  // namespace

void latent_checks(Bench& b) {
  LatentCase c;
  for (int tokens : {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000})
    c.rows.push_back({tokens_in_runs(tokens, 16), 256});
  check_case(b, "odd lengths", c);
  c.rows = {
      {tokens_in_runs(5024, 16), 1024}, {{}, 2048}, {{16, 0, 5, 16}, 16, 3}, {tokens_in_runs(500, 16), 96}};
  check_case(b, "long splits, holes, several present tokens", c);
  c.with_present = false;
  check_case(b, "no present", c);
  c.with_present = true;
  for (int heads : {1, 16, 24, 25, 64}) {
    c.heads = heads;
    check_case(b, format("{} heads", heads), c);
  }
  c.heads = 20, c.page = c.unit = 64, c.rows = {{{64, 64, 32, 64}, 64}, {tokens_in_runs(1280, 64), 512, 2}};
  check_case(b, "pages of 64", c);
  c.unit = c.page = 16, c.rows.clear();
  for (int i = 0; i < 40; ++i) c.rows.push_back({tokens_in_runs(i * 37 % 300, 16), 64});
  check_case(b, "40 rows", c);
  LatentCase alone;
  alone.rows = {{tokens_in_runs(992, 16), 128}};
  alone.seed = 3;
  LatentStep one(alone, b), again(alone, b);
  again.plan().grid = 3;
  one.enqueue(b), again.enqueue(b);
  b.stream().synchronize();
  const auto x = one.out(), y = again.out();
  b.check("latent: no grid shows", std::equal(x.begin(), x.end(), y.begin()), 0, true);
  for (int ahead = 0; ahead < 3; ++ahead) {  // what the kernel ahead still writes is not read
    one.ahead = cuda::DecodeAhead(ahead);
    one.enqueue_after_late_writer(b);
    constexpr const char* kWhat[] = {"nothing", "tables", "the past"};
    b.check(format("latent: {} ahead", kWhat[ahead]), one.out() == x, 0, true);
  }
}

void latent_cases(Bench& b) {
  for (int batch : {1, 8})
    for (int split : {1008, 1024, 2048, 8192}) {
      if ((batch == 1) != (split < 2048)) continue;
      LatentCase c;
      for (int r = 0; r < batch; ++r) c.rows.push_back({tokens_in_runs(131072, 16), split});
      time_case(b, format("bf16 20 heads, 576 channels, 131072 tokens, batch {}, split {}", batch, split), c);
    }
  LatentCase c;
  for (int r = 0; r < 64; ++r) c.rows.push_back({tokens_in_runs(2048, 16), 1024});
  time_case(b, "bf16 20 heads, 576 channels, 2048 tokens, batch 64, split 1024", c);
}

}  // namespace se::kbench
