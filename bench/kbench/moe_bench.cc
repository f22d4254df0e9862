#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <set>

#include "base/fmt.h"
#include "base/half.h"
#include "kbench/moe_step.h"
#include "kbench/reference.h"

namespace se::kbench {

MoeStep::MoeStep(const MoeCase& c, Bench& b) : c_(c) {
  const int64_t e = c.experts, k = c.k, inner = c.inner, pairs = int64_t(c.rows) * c.top_k;
  x_.resize(size_t(c.rows * k)), norm_.resize(size_t(k));
  for (size_t i = 0; i < x_.size(); ++i) x_[i] = 2 * random_float(15 + 100 * c.seed, i);
  for (size_t i = 0; i < norm_.size(); ++i) norm_[i] = 1 + 0.5f * random_float(16, i);
  x_on_ = upload(x_), norm_on_ = upload(norm_);
  gate_ = device_memory(e * k * 2), up_ = device_memory(e * 2 * inner * k),
  down_ = device_memory(e * k * inner);
  up_scale_ = device_memory(e * 2 * inner / 128 * (k / 128) * 4);
  down_scale_ = device_memory(e * k / 128 * (inner / 128) * 4);
  fill_random(gate_.data(), e * k, true, 0.05f, 11, b.stream());
  fill_bytes(up_.data(), up_.bytes(), false, 12, b.stream());
  fill_bytes(down_.data(), down_.bytes(), false, 13, b.stream());
  fill_floats(up_scale_.data(), up_scale_.bytes() / 4, 0.005f, 0.02f, 14, b.stream());
  fill_floats(down_scale_.data(), down_scale_.bytes() / 4, 0.005f, 0.02f, 15, b.stream());
  h_ = device_memory(c.rows * k * 2), logits_ = device_memory(c.rows * e * 4);
  tables_ = device_memory(cuda::kMoeTables + 4);
  SE_CUDA(cudaMemset(tables_.data(), 0, size_t(tables_.bytes())));
  weight_ = device_memory(pairs * 4), expert_ = device_memory(pairs * 4);
  product_ = device_memory((cuda::kMoeProducts + pairs) * inner * 2), y_ = device_memory(c.rows * k * 4);
  SE_CUDA(cudaMemset(product_.data(), 0xff, size_t(product_.bytes())));
  SE_CUDA(cudaMemset(y_.data(), 0xff, size_t(y_.bytes())));
  route_.x = x_on_.ptr<float>(), route_.norm = norm_on_.ptr<float>(), route_.eps = 1e-6f,
  route_.gate = gate_.data();
  route_.rows = c.rows, route_.k = c.k, route_.experts = c.experts;
  route_.h = h_.ptr<__half>(), route_.logits = logits_.ptr<float>();
  experts_.up = up_.ptr<uint8_t>(), experts_.up_scale = up_scale_.ptr<float>();
  experts_.down = down_.ptr<uint8_t>(), experts_.down_scale = down_scale_.ptr<float>();
  experts_.experts = c.experts, experts_.k = c.k, experts_.inner = c.inner, experts_.rows = c.rows;
  experts_.top_k = c.top_k, experts_.logits = route_.logits, experts_.h = route_.h;
  experts_.expert = expert_.ptr<int32_t>(), experts_.weight = weight_.ptr<float>();
  experts_.tables = tables_.ptr<uint32_t>();
  experts_.product = product_.ptr<__half>(), experts_.x = route_.x, experts_.y = y_.ptr<float>();
  SE_CUDA(cudaDeviceSynchronize());
}

int MoeStep::distinct() const {
  const auto expert = download<int32_t>(expert_.data(), int64_t(c_.rows) * c_.top_k);
  return int(std::set<int32_t>(expert.begin(), expert.end()).size());
}
double MoeStep::expert_bytes() const {
  return distinct() * (3.0 * c_.inner * c_.k + 3.0 * c_.inner * c_.k / 128 / 128 * 4);
}

double MoeStep::route_error() const {
  const size_t k = size_t(c_.k), e = size_t(c_.experts), chosen = size_t(c_.top_k);
  const auto gate = download<uint16_t>(gate_.data(), c_.experts * int64_t(c_.k));
  const auto logits = download<float>(logits_.data(), int64_t(c_.rows) * c_.experts);
  const auto expert = download<int32_t>(expert_.data(), int64_t(c_.rows) * c_.top_k);
  const auto weight = download<float>(weight_.data(), int64_t(c_.rows) * c_.top_k);
  double worst = 0;
  for (size_t r = 0; r < size_t(c_.rows); ++r) {
    double sum = 0;
    for (size_t i = 0; i < k; ++i) sum += double(x_[r * k + i]) * double(x_[r * k + i]);
    const double f = 1 / std::sqrt(sum / double(k) + 1e-6);
    for (size_t x = 0; x < e; ++x) {
      double dot = 0, size = 0;
      for (size_t i = 0; i < k; ++i) {
        const double term =
            double(bf16_to_f32(gate[x * k + i])) * double(x_[r * k + i]) * f * double(norm_[i]);
        dot += term, size += std::abs(term);
      }
      worst = std::max(worst, std::abs(dot - double(logits[r * e + x])) / size);
    }
    // The choice, by the logits that were written: the k best, best first, ties to the lower.
    std::vector<int32_t> order(e);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t c) {
      return logits[r * e + size_t(a)] > logits[r * e + size_t(c)];
    });
    double all = 0;
    for (size_t j = 0; j < chosen; ++j)
      all += std::exp(double(logits[r * e + size_t(order[j])]) - double(logits[r * e + size_t(order[0])]));
    for (size_t j = 0; j < chosen; ++j) {
      if (order[j] != expert[r * chosen + j]) return 1e30;
      const double w =
          std::exp(double(logits[r * e + size_t(order[j])]) - double(logits[r * e + size_t(order[0])])) / all;
      worst = std::max(worst, std::abs(w - double(weight[r * chosen + j])));
    }
  }
  return worst;
}

double MoeStep::experts_error(Bench& b) const {
  const auto expert = download<int32_t>(expert_.data(), int64_t(c_.rows) * c_.top_k);
  const auto weight = download<float>(weight_.data(), int64_t(c_.rows) * c_.top_k);
  const auto got = y();
  const int64_t k = c_.k, inner = c_.inner;
  cuda::Buffer out = device_memory(std::max(2 * inner, k) * 8), size = device_memory(out.bytes());
  double worst = 0;
  for (int r = 0; r < c_.rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += double(x_[size_t(r * k + i)]) * double(x_[size_t(r * k + i)]);
    std::vector<float> h(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; ++i)
      h[size_t(i)] =
          float(double(x_[size_t(r * k + i)]) * double(norm_[size_t(i)]) / std::sqrt(sum / double(k) + 1e-6));
    const cuda::Buffer on = upload(h);
    std::vector<double> want(size_t(k), 0.0);
    for (int j = 0; j < c_.top_k; ++j) {
      const int64_t e = expert[size_t(r * c_.top_k + j)];
      reference_linear(experts_.up + e * 2 * inner * k,
                       experts_.up_scale + e * 2 * inner / 128 * (k / 128),
                       int(2 * inner),
                       int(k),
                       on.ptr<float>(),
                       1,
                       out.ptr<double>(),
                       size.ptr<double>(),
                       b.stream());
      b.stream().synchronize();
      const auto both = download<double>(out.data(), 2 * inner);
      std::vector<float> p(static_cast<size_t>(inner));
      for (size_t i = 0; i < p.size(); ++i)
        p[i] = float(both[i] / (1 + std::exp(-both[i])) * both[size_t(inner) + i]);
      const cuda::Buffer p_on = upload(p);
      reference_linear(experts_.down + e * k * inner,
                       experts_.down_scale + e * k / 128 * (inner / 128),
                       int(k),
                       int(inner),
                       p_on.ptr<float>(),
                       1,
                       out.ptr<double>(),
                       size.ptr<double>(),
                       b.stream());
      b.stream().synchronize();
      const auto y = download<double>(out.data(), k);
      for (size_t i = 0; i < y.size(); ++i) want[i] += double(weight[size_t(r * c_.top_k + j)]) * y[i];
    }
    double most = 1e-30;
    for (double v : want) most = std::max(most, std::abs(v));
    for (size_t i = 0; i < want.size(); ++i) {
      const double e =
          std::abs(double(got[size_t(r * k) + i]) - double(x_[size_t(r * k) + i]) - want[i]) / most;
      if (!(e < 1e30)) return 1e30;
      worst = std::max(worst, e);
    }
  }
  return worst;
}

namespace {

constexpr double kRoute = 1e-5, kExperts = 2e-3;  // f32 sums; halves of h and of the product: 2^-11 each

void check(Bench& b, const MoeCase& c, bool always) {
  MoeStep m(c, b);
  m.route(b), m.experts(b);
  b.stream().synchronize();
  const double r = m.route_error(), e = m.experts_error(b);
  const std::string what =
      format("{} rows of {}, {} of {} experts of {}", c.rows, c.k, c.top_k, c.experts, c.inner);
  b.check("moe route " + what, r <= kRoute, r, always);
  b.check("moe experts " + what, e <= kExperts, e, always);
}

}  // namespace

void moe_checks(Bench& b) {
  check(b, {1, 1024, 256, 16, 2}, true);
  check(b, {5, 1024, 512, 8, 8}, true);  // every expert serves every row
  check(b, {33, 1024, 256, 6, 1}, true);
  check(b, {64, 2048, 768, 40, 4}, true);
  check(b, {3, 3072, 256, 16, 2}, true);   // more channels than the blocks take at once
  check(b, {64, 1024, 768, 12, 8}, true);  // parts of a pair added up on the way
  MoeStep one({1, 1024, 256, 16, 4}, b), many({20, 1024, 256, 16, 4}, b);
  one.route(b), one.experts(b), many.route(b), many.experts(b);
  b.stream().synchronize();
  const auto x = one.y(), y = many.y();
  b.check("moe: no batch mate shows", std::equal(x.begin(), x.end(), y.begin()), 0, true);
}

void moe_cases(Bench& b) {
  for (const int rows : {1, 3, 8, 48}) {
    const MoeCase c{rows, 2048, 768, 128, 8};
    check(b, c, false);
    MoeStep m(c, b);
    m.route(b), m.experts(b);
    b.stream().synchronize();
    b.report("moe_route", format("{} rows of 2048, 128 experts", rows), m.route_bytes(), 0, b.measure([&] {
      m.route(b);
    }));
    b.report("moe_route", format("{} rows, three times", rows), m.route_bytes(), 0, b.measure([&] {
      for (int i = 0; i < 3; ++i) m.route(b);
    }));
    b.report("moe_experts",
             format("{} rows of 2048, {} of 128 experts of 768", rows, m.distinct()),
             m.expert_bytes(),
             0,
             b.measure([&] { m.experts(b); }));
    b.report("moe", format("{} rows, route and experts", rows), m.expert_bytes(), 0, b.measure([&] {
      m.route(b), m.experts(b);
    }));
    std::deque<MoeStep> all;
    for (int i = 0; i < copies_in_a_row(m.expert_bytes()); ++i) {
      MoeCase other = c;
      other.seed = uint64_t(i + 1);
      all.emplace_back(other, b);
    }
    double bytes = 0;  // mean: each copy chooses its own
    for (const MoeStep& s : all) {
      s.route(b), s.experts(b);
      b.stream().synchronize();
      bytes += s.expert_bytes() / double(all.size());
    }
    b.report("moe in a row",
             format("{} rows, route and experts", rows),
             bytes,
             0,
             b.measure_in_a_row(int(all.size()),
                                [&](int i) { all[size_t(i)].route(b), all[size_t(i)].experts(b); }));
    b.report("moe_experts in a row",
             format("{} rows, chosen before", rows),
             bytes,
             0,
             b.measure_in_a_row(int(all.size()), [&](int i) { all[size_t(i)].experts(b); }));
  }
}

}  // namespace se::kbench
