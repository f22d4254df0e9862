#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>

#include "base/fmt.h"
#include "base/half.h"
#include "kbench/kbench.h"
#include "kernels/topk/topk_cuda.h"
#include "sparse/read/quest/quest_cuda.h"

namespace se::kbench {
namespace {

// Bounds of units in pages [head][item][dim], lo before hi, one layer's slice after another's place.
class Scores {
 public:
  // levels > 0: F16 steps in hi's place, as KIVI keeps them.
  Scores(std::vector<int32_t> units,
         int kv_heads,
         int group,
         int per_page,
         int64_t page_bytes,
         Bench& b,
         float levels = 0)
      : units_(std::move(units)), kv_heads_(kv_heads), group_(group), per_page_(per_page) {
    const int64_t plane = int64_t(kv_heads) * per_page * 256, rows = int64_t(units_.size());
    plane_ = plane, page_bytes_ = std::max(page_bytes, 2 * plane);
    std::vector<int64_t> runs, start;
    std::vector<int32_t> q_start{0}, ids;
    for (int32_t n : units_) {
      start.push_back(int64_t(runs.size()));
      for (int32_t u = 0; u < n; u += per_page)
        runs.push_back(int64_t(runs.size()) * (page_bytes_ / 256) * 16 * per_page << 16 | 16 * per_page);
      ids.push_back(int32_t(ids.size())), q_start.push_back(int32_t(q_start.size()));
    }
    start_ = start;
    arena_ = device_memory(std::max<int64_t>(1, int64_t(runs.size())) * page_bytes_);
    fill_random(arena_.data(), arena_.bytes() / 2, true, 1, 5, b.stream());
    if (levels > 0) make_steps();
    q_.resize(size_t(rows * kv_heads * group * 128));
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = 2 * random_float(6, i);
    most_ = *std::max_element(units_.begin(), units_.end()), stride_ = (most_ + 3) / 4 * 4 + 4;
    std::vector<float> poison(size_t(rows * stride_), std::numeric_limits<float>::quiet_NaN());
    std::vector<int32_t> n{int32_t(rows)};
    runs.push_back(0);
    const auto put = [&](auto& host) {
      held_.push_back(upload(host));
      return held_.back().data();
    };
    p_.lo = arena_.data(), p_.hi = arena_.data() + plane, p_.levels = levels;
    p_.item_stride = 256, p_.head_stride = per_page * 256;
    p_.unit_shift = 4, p_.page_shift = 4 + int(std::log2(per_page));
    p_.pool = int64_t(runs.size()), p_.rows = int(rows);
    p_.runs = reinterpret_cast<int64_t*>(put(runs)), p_.start = reinterpret_cast<int64_t*>(put(start));
    p_.units = reinterpret_cast<int32_t*>(put(units_)), p_.ids = reinterpret_cast<int32_t*>(put(ids));
    p_.n = reinterpret_cast<int32_t*>(put(n)), p_.cap = int(rows);
    p_.q_start = reinterpret_cast<int32_t*>(put(q_start)), p_.q = reinterpret_cast<float*>(put(q_));
    p_.q_token = kv_heads * group * 128, p_.q_head = 128, p_.kv_heads = kv_heads, p_.group = group;
    p_.score = reinterpret_cast<float*>(put(poison)), p_.score_row = stride_, p_.most_units = most_;
    SE_CUDA(cudaDeviceSynchronize());
  }
  const quest::cuda::ScoreParams& params() const { return p_; }
  double bytes() const { return std::accumulate(units_.begin(), units_.end(), 0.0) * kv_heads_ * 512; }

  double error() const {
    const auto pages = download<uint16_t>(arena_.data(), arena_.bytes() / 2);
    const auto score = download<float>(p_.score, int64_t(units_.size()) * stride_);
    double worst = 0;
    for (size_t r = 0; r < units_.size(); ++r)
      for (int64_t u = 0; u < units_[r]; ++u) {
        double best = -1e300, size = 1e-30;
        for (int a = 0; a < kv_heads_ * group_; ++a) {
          const float* q = q_.data() + (r * size_t(kv_heads_ * group_) + size_t(a)) * 128;
          const int64_t at = ((start_[r] + u / per_page_) * page_bytes_ + a / group_ * per_page_ * 256 +
                              u % per_page_ * 256) /
                             2;
          double sum = 0, terms = 0;
          for (int d = 0; d < 128; ++d) {
            const double lo = double(bf16_to_f32(pages[size_t(at + d)]));
            const uint16_t second = pages[size_t(at + plane_ / 2 + d)];
            const double hi = p_.levels > 0 ? lo + double(p_.levels) * double(f16_to_f32(second))
                                            : double(bf16_to_f32(second));
            const double term = q[d] > 0 ? double(q[d]) * hi : double(q[d]) * lo;
            sum += term;
            terms += p_.levels > 0 ? std::abs(q[d] * lo) + std::abs(q[d] * (hi - lo)) : std::abs(term);
          }
          best = std::max(best, sum), size = std::max(size, terms);
        }
        const float got = score[r * size_t(stride_) + size_t(u)];
        if (std::isnan(got)) return 1e30;
        worst = std::max(worst, std::abs(double(got) - best) / size);
      }
    return worst;
  }

 private:
  // The second plane's random bits (BF16 below 2) are F16 below 2 too; their signs go.
  void make_steps() {
    SE_CUDA(cudaDeviceSynchronize());
    auto pages = download<uint16_t>(arena_.data(), arena_.bytes() / 2);
    for (int64_t page = 0; page < arena_.bytes() / page_bytes_; ++page)
      for (int64_t i = plane_ / 2; i < plane_; ++i) pages[size_t(page * page_bytes_ / 2 + i)] &= 0x7fff;
    SE_CUDA(cudaMemcpy(arena_.data(), pages.data(), pages.size() * 2, cudaMemcpyHostToDevice));
  }

  std::vector<int32_t> units_;
  int kv_heads_, group_, per_page_;
  int64_t page_bytes_ = 0, plane_ = 0, most_ = 0, stride_ = 0;
  std::vector<int64_t> start_;
  std::vector<float> q_;
  cuda::Buffer arena_;
  std::vector<cuda::Buffer> held_;
  quest::cuda::ScoreParams p_;
};

constexpr double kScoreTolerance = 2e-5;  // of the sum of the terms' sizes: 2^-17 a term and f32 sums

class Selection {
 public:
  Selection(const std::vector<std::vector<float>>& rows, int k) : rows_(rows) {
    size_t most = 1;
    for (const auto& r : rows) most = std::max(most, r.size());
    stride_ = int64_t(most + 7) / 8 * 8;
    std::vector<float> all(rows.size() * size_t(stride_), std::numeric_limits<float>::infinity());
    std::vector<int32_t> n;
    for (size_t r = 0; r < rows.size(); ++r) {
      std::copy(rows[r].begin(), rows[r].end(), all.begin() + int64_t(r) * stride_);
      n.push_back(int32_t(rows[r].size()));
    }
    score_ = upload(all), n_ = upload(n);
    p_.index_row = std::max(k, 1),
    index_ = upload(std::vector<int32_t>(rows.size() * size_t(p_.index_row), -1));
    p_.score = score_.ptr<float>(), p_.score_row = stride_, p_.n = n_.ptr<int32_t>(),
    p_.rows = int(rows.size());
    p_.k = k, p_.index = index_.ptr<int32_t>();
    std::vector<int64_t> runs, start;
    for (const auto& r : rows) {
      start.push_back(int64_t(runs.size()));
      for (size_t i = 0; i < r.size(); ++i) runs.push_back(run(runs.size()));
    }
    runs_ = upload(runs), start_ = upload(start);
    out_runs_ = upload(std::vector<int64_t>(rows.size() * size_t(p_.index_row), -1));
    p_.runs = runs_.ptr<int64_t>(), p_.start = start_.ptr<int64_t>(), p_.out_runs = out_runs_.ptr<int64_t>();
  }
  const cuda::TopKParams& params() const { return p_; }
  bool right() const {  // against a stable sort
    const auto runs = download<int64_t>(out_runs_.data(), int64_t(rows_.size()) * p_.index_row);
    size_t begin = 0;
    const auto got = download<int32_t>(index_.data(), int64_t(rows_.size()) * p_.index_row);
    for (size_t r = 0; r < rows_.size(); ++r) {
      std::vector<int32_t> want(rows_[r].size());
      std::iota(want.begin(), want.end(), 0);
      const auto better = [&](int32_t a, int32_t b) {
        const float x = rows_[r][size_t(a)], y = rows_[r][size_t(b)];
        return std::isnan(x) || std::isnan(y) ? !std::isnan(x) && std::isnan(y) : x > y;
      };
      std::stable_sort(want.begin(), want.end(), better);
      want.resize(std::min(want.size(), size_t(std::max(p_.k, 0))));
      std::sort(want.begin(), want.end());
      if (!std::equal(want.begin(), want.end(), got.begin() + int64_t(r) * p_.index_row)) return false;
      for (size_t i = 0; i < want.size(); ++i)
        if (runs[r * size_t(p_.index_row) + i] != run(begin + size_t(want[i]))) return false;
      begin += rows_[r].size();
    }
    return true;
  }

 private:
  std::vector<std::vector<float>> rows_;
  int64_t stride_ = 0;
  static int64_t run(size_t i) { return int64_t(i) * 0x100010001 + 7; }

  cuda::Buffer score_, n_, index_, runs_, start_, out_runs_;
  cuda::TopKParams p_;
};

std::vector<float> scores(int n, uint64_t seed, int kind) {
  std::vector<float> s(static_cast<size_t>(n));
  for (size_t i = 0; i < s.size(); ++i) {
    const float x = random_float(seed, i);
    s[i] = kind == 0   ? 40 + 10 * x
           : kind == 1 ? std::floor(x * 4)
                       : x * std::exp2(60 * random_float(seed + 1, i));
    if (kind == 1 && i % 97 == 0) s[i] = std::numeric_limits<float>::quiet_NaN();
    if (kind == 1 && i % 89 == 0) s[i] = -std::numeric_limits<float>::infinity();
    if (kind == 1 && i % 83 == 0) s[i] = -0.f;
  }
  return s;
}

}  // namespace

void quest_checks(Bench& b) {
  const auto check = [&](const std::string& what, const Scores& s) {
    quest::cuda::score_units(s.params(), b.stream());
    b.stream().synchronize();
    const double error = s.error();
    b.check("quest scores " + what, error <= kScoreTolerance, error, true);
  };
  check("0, 1, 7, 8, 33, 500 units", Scores({0, 1, 7, 8, 33, 500}, 4, 8, 1, 0, b));
  check("3 KV heads, groups of 5, pages of 4 units", Scores({130, 64, 3}, 3, 5, 4, 0, b));
  check("9 KV heads, one query head each", Scores({100}, 9, 1, 1, 0, b));
  check("KIVI's steps, 0, 1, 9, 500 units", Scores({0, 1, 9, 500}, 4, 8, 1, 0, b, 15));
  check("KIVI's steps, 3 KV heads, groups of 5, pages of 4 units", Scores({130, 64, 3}, 3, 5, 4, 0, b, 3));
}

void quest_cases(Bench& b) {
  for (int rows : {1, 3, 8}) {
    for (int64_t page_bytes : {int64_t{0}, int64_t{46 * 4096}}) {
      const Scores s(std::vector<int32_t>(size_t(rows), 8192), 4, 8, 1, page_bytes, b);
      quest::cuda::score_units(s.params(), b.stream());
      b.stream().synchronize();
      const double error = rows == 1 && page_bytes == 0 ? s.error() : 0;
      const Stats t = b.measure([&] { quest::cuda::score_units(s.params(), b.stream()); });
      b.report("quest_scores",
               format("8192 pages x 4 heads, {} rows, {}",
                      rows,
                      page_bytes ? "46 layers a page" : "one layer a page"),
               s.bytes(),
               error,
               t);
      if (page_bytes) continue;
      std::deque<Scores> all;
      for (int i = 0; i < copies_in_a_row(s.bytes()); ++i)
        all.emplace_back(std::vector<int32_t>(size_t(rows), 8192), 4, 8, 1, page_bytes, b);
      b.report("quest_scores in a row",
               format("8192 pages x 4 heads, {} rows", rows),
               s.bytes(),
               error,
               b.measure_in_a_row(int(all.size()), [&](int i) {
                 quest::cuda::score_units(all[size_t(i)].params(), b.stream());
               }));
    }
  }
  const Scores kivi({4096}, 4, 8, 1, 0, b, 15);
  quest::cuda::score_units(kivi.params(), b.stream());
  b.stream().synchronize();
  const double error = kivi.error();
  const Stats t = b.measure([&] { quest::cuda::score_units(kivi.params(), b.stream()); });
  b.report("quest_scores", "KIVI's steps, 4096 units x 4 heads, 1 row", kivi.bytes(), error, t);
}

void topk_checks(Bench& b) {
  for (int kind = 0; kind < 3; ++kind) {
    for (int k : {0, 1, 3, 127, 1000}) {
      std::vector<std::vector<float>> rows;
      for (int n : {0, 1, 3, 127, 128, 1001, 8191, 8192, 8193, 20000})
        rows.push_back(scores(n, uint64_t(n + kind), kind));
      Selection s(rows, k);
      cuda::top_k(s.params(), b.stream());
      b.stream().synchronize();
      b.check(format("top_k of kind {}, k {}", kind, k), s.right(), 0, k == 127);
    }
  }
}

void topk_cases(Bench& b) {
  for (int n : {8192, 65536}) {
    for (int rows : {1, 8, 48}) {
      std::vector<std::vector<float>> all;
      for (int r = 0; r < rows; ++r) all.push_back(scores(n, uint64_t(r + 1) * 1000003, 0));
      Selection s(all, 128);
      cuda::top_k(s.params(), b.stream());
      b.stream().synchronize();
      b.check("top_k before timing", s.right(), 0);
      const Stats t = b.measure([&] { cuda::top_k(s.params(), b.stream()); });
      b.report("top_k", format("128 of {}, {} rows", n, rows), 4.0 * n * rows, 0, t);
      const Stats t3 = b.measure([&] {
        for (int i = 0; i < 3; ++i) cuda::top_k(s.params(), b.stream());
      });
      b.report("top_k", format("128 of {}, {} rows, three times", n, rows), 4.0 * n * rows, 0, t3);
    }
  }
}

}  // namespace se::kbench
