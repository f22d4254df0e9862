// Device sampling, against the CPU's sample() in this very program.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/fmt.h"
#include "base/rng.h"
#include "kbench/kbench.h"
#include "kernels/sample/sample.h"
#include "kernels/sample/sample_cuda.h"
#include "kernels/sample/softmax_weights.h"

namespace se::kbench {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

enum Kind { kNormal, kTies, kFlat, kPeaked };

std::vector<float> make_logits(int rows, int64_t vocab, Kind kind, uint64_t seed) {
  std::vector<float> x(size_t(rows * vocab));
  for (size_t i = 0; i < x.size(); ++i) {
    const uint64_t at = i * 4;
    const float normal = 1.5f * (random_float(seed, at) + random_float(seed, at + 1) +
                                 random_float(seed, at + 2) + random_float(seed, at + 3));
    x[i] = kind == kFlat ? 2.f : kind == kTies ? std::floor(2 * normal) : 2 * normal;
    if (kind == kPeaked && i % 4001 == 7) x[i] += 14 + 3 * normal;
    if (kind == kTies && i % 97 == 3) x[i] = kNan;
    if (kind == kTies && i % 89 == 3) x[i] = -kInf;
    if (kind == kTies && i % 83 == 3) x[i] = -0.f;
  }
  return x;
}

SampleParams params_of(int i) {  // every combination, in an order that mixes them
  constexpr float kTemperature[] = {1, 0.7f, 0, 2, 0.3f, 1e30f}, kTopP[] = {1, 0.9f, 0.5f, 1e-9f, 0.999f},
                  kMinP[] = {0, 0, 0.05f, 0.5f, 1, 0, 1e-3f};
  constexpr int kTopK[] = {0, 20, 1, 0, 1000, 2, 0, 200, 100000, 150001, 0};
  SampleParams p;
  p.temperature = kTemperature[i % 6], p.top_p = kTopP[i % 5], p.min_p = kMinP[i % 7],
  p.top_k = kTopK[i % 11];
  p.seed = uint64_t(i) * 0x9e3779b97f4a7c15ull, p.choice = uint64_t(i % 3);
  return p;
}

// Whether u, or the sum that top_p wants, lies within 1e-9 of the total of an edge: only there may two right
// answers differ.
bool near_tie(std::span<const float> x, const SampleParams& p, uint64_t position) {
  std::vector<int32_t> ids(x.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::erase_if(ids, [&](int32_t i) { return std::isnan(x[size_t(i)]); });
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return x[size_t(a)] > x[size_t(b)]; });
  if (p.top_k > 0 && size_t(p.top_k) < ids.size()) ids.resize(size_t(p.top_k));
  const float max = x[size_t(ids[0])], lowest = sample_detail::lowest_exponent(p.min_p);
  const auto weight = [&](int32_t i) {
    const float z = (x[size_t(i)] - max) / p.temperature;
    return z >= lowest ? static_cast<long double>(sample_detail::exp_nonpositive(z)) : 0;
  };
  long double total = 0, reached = 0, closest = 1;
  for (int32_t i : ids) total += weight(i);
  size_t kept = 0;
  while (kept < ids.size() && (kept == 0 || p.top_p >= 1 || reached < p.top_p * total)) {
    reached += weight(ids[kept++]);
    if (p.top_p < 1) closest = std::min(closest, std::abs(reached - p.top_p * total) / total);
  }
  ids.resize(kept);
  std::sort(ids.begin(), ids.end());
  long double sum = 0;
  const long double wanted = uniform(p.seed, p.choice, position) * reached;
  for (int32_t i : ids) sum += weight(i), closest = std::min(closest, std::abs(sum - wanted) / total);
  return closest < 1e-9L;
}

class Sampling {
 public:
  Sampling(int rows, int64_t vocab, Kind kind, uint64_t position, int first_params)
      : rows_(rows), vocab_(vocab), position_(position), x_(make_logits(rows, vocab, kind, position + 1)) {
    for (int r = 0; r < rows; ++r) asked_.push_back(params_of(first_params + r));
    place();
  }
  Sampling(int rows, int64_t vocab, Kind kind, const SampleParams& all)
      : rows_(rows), vocab_(vocab), position_(5), x_(make_logits(rows, vocab, kind, 3)) {
    asked_.assign(size_t(rows), all);
    for (int r = 0; r < rows; ++r) asked_[size_t(r)].seed = uint64_t(r);
    place();
  }
  void enqueue(Bench& b, int first = 0, int rows = -1) const {
    cuda::SampleLaunch p;
    p.logits = x_on_.ptr<float>() + first * vocab_, p.logits_row = p.vocab = vocab_;
    p.rows = rows < 0 ? rows_ : rows, p.row = asked_on_.ptr<cuda::SampleRow>() + first;
    p.token = token_.ptr<int32_t>() + first;
    cuda::sample(p, b.stream());
  }
  std::vector<int32_t> tokens(Bench& b) const {
    b.stream().synchronize();
    return download<int32_t>(token_.data(), rows_);
  }
  // Counts tokens that are not the CPU's: near-ties, and those that are wrong.
  void compare(std::span<const int32_t> got, int& ties, int& wrong) const {
    for (int r = 0; r < rows_; ++r) {
      const std::span<const float> x(x_.data() + r * vocab_, size_t(vocab_));
      const SampleParams& p = asked_[size_t(r)];
      if (std::all_of(x.begin(), x.end(), [](float f) { return std::isnan(f); })) continue;
      if (se::sample(x, p, position_) == got[size_t(r)]) continue;
      ++(p.temperature >= 1e-5f && near_tie(x, p, position_) ? ties : wrong);
    }
  }

 private:
  void place() {
    std::vector<cuda::SampleRow> asked;
    for (const SampleParams& p : asked_) asked.push_back(cuda::sample_row(p, position_));
    x_on_ = upload(x_), asked_on_ = upload(asked);
    token_ = upload(std::vector<int32_t>(size_t(rows_), -1));
  }
  int rows_;
  int64_t vocab_;
  uint64_t position_;
  std::vector<float> x_;
  std::vector<SampleParams> asked_;
  cuda::Buffer x_on_, asked_on_, token_;
};

}  // namespace

void sample_checks(Bench& b) {
  if (b.few()) {
    // One row each: top_k and top_p; neither; a long top_k and top_p; top_k; top_p.
    for (int i : {1, 3, 4, 5, 9}) {
      if (!b.next_is_ours()) continue;
      const Sampling s(1, 2049, Kind(i % 4), uint64_t(7 + i), i);
      s.enqueue(b);
      int ties = 0, wrong = 0;
      s.compare(s.tokens(b), ties, wrong);
      b.check(format("sample: one row of 2049 logits, parameters {}", i), wrong == 0, wrong, true);
    }
    return;
  }
  for (int64_t vocab : {1, 31, 255, 256, 257, 1000, 2049, 49152, 151669, 151936, 262144}) {
    for (Kind kind : {kNormal, kTies, kFlat, kPeaked}) {
      if (!b.next_is_ours()) continue;
      const bool large = vocab > 3000;
      int ties = 0, wrong = 0, rows = 0;
      bool same = true;
      for (int i = 0; i < (large ? 1 : 6); ++i) {
        const int n = large ? 40 : 64;
        const Sampling s(n, vocab, kind, uint64_t(vocab + i), i * 64 + int(kind) * 17 + int(vocab % 13));
        s.enqueue(b);
        const auto got = s.tokens(b);
        s.compare(got, ties, wrong);
        rows += n;
        if (i > 0) continue;
        for (int r : {0, 3, n - 1}) s.enqueue(b, r, 1);  // alone, a row draws what it drew among others
        same = same && got == s.tokens(b);
      }
      b.check(format("sample: {} logits, kind {}, {} rows: {} near-ties, {} wrong, {}",
                     vocab,
                     int(kind),
                     rows,
                     ties,
                     wrong,
                     same ? "mates do not show" : "mates show"),
              wrong == 0 && same && ties * 100 <= rows,
              wrong,
              true);
    }
  }
}

void sample_cases(Bench& b) {
  constexpr int64_t kVocab = 151936;
  struct Case {
    const char* name;
    Kind kind;
    SampleParams p;
  };
  const Case cases[] = {{"greedy", kPeaked, {}},
                        {"temperature", kPeaked, {.temperature = 0.8f}},
                        {"top_p 0.95", kPeaked, {.temperature = 0.8f, .top_p = 0.95f}},
                        {"top_p 0.95 of a flat distribution", kNormal, {.temperature = 1, .top_p = 0.95f}},
                        {"top_k 20, top_p 0.95", kPeaked, {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f}},
                        {"min_p 0.05", kPeaked, {.temperature = 1, .min_p = 0.05f}}};
  for (const Case& c : cases) {
    for (int rows : {1, 8, 64}) {
      const Sampling s(rows, kVocab, c.kind, c.p);
      s.enqueue(b);
      int ties = 0, wrong = 0;
      s.compare(s.tokens(b), ties, wrong);
      b.check(format("sample before timing, {}: {} near-ties", c.name, ties), wrong == 0, wrong);
      const Stats t = b.measure([&] { s.enqueue(b); });
      b.report("sample", format("{} x {}, {}", rows, kVocab, c.name), 4.0 * double(rows * kVocab), wrong, t);
    }
  }
}

}  // namespace se::kbench
