// The sparse MLP of a prompt's chunk: each step against a double reference on what the step before wrote.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/fmt.h"
#include "base/half.h"
#include "kbench/kbench.h"
#include "kbench/reference.h"
#include "kernels/linear/block_gemm_cuda.h"
#include "kernels/moe/moe_prompt_cuda.h"

namespace se::kbench {
namespace {

struct Case {
  int rows, k, inner, experts, top_k;
  bool one_sided = false;  // the first rows all choose the same experts: empty groups, a large one
};

class Prompt {
 public:
  Prompt(const Case& c, Bench& b) : c_(c) {
    const int64_t e = c.experts, k = c.k, inner = c.inner, pairs = int64_t(c.rows) * c.top_k;
    x_.resize(size_t(c.rows * k)), norm_.resize(size_t(k)), logits_.resize(size_t(c.rows * e));
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = 2 * random_float(15, i);
    for (size_t i = 0; i < norm_.size(); ++i) norm_[i] = 1 + 0.5f * random_float(16, i);
    for (size_t i = 0; i < logits_.size(); ++i) {
      const int64_t expert = int64_t(i) % e;
      // Steps of 1/64, so that some are equal.
      logits_[i] =
          std::floor(256 * random_float(17, i)) / 64 + (c.one_sided && expert < c.top_k ? 20.f : 0.f);
    }
    x_on_ = upload(x_), norm_on_ = upload(norm_), logits_on_ = upload(logits_);
    up_ = device_memory(e * 2 * inner * k), down_ = device_memory(e * k * inner);
    up_scale_ = device_memory(e * ((2 * inner + 127) / 128) * (k / 128) * 4);
    down_scale_ = device_memory(e * ((k + 127) / 128) * (inner / 128) * 4);
    fill_bytes(up_.data(), up_.bytes(), false, 12, b.stream());
    fill_bytes(down_.data(), down_.bytes(), false, 13, b.stream());
    fill_floats(up_scale_.data(), up_scale_.bytes() / 4, 0.005f, 0.02f, 14, b.stream());
    fill_floats(down_scale_.data(), down_scale_.bytes() / 4, 0.005f, 0.02f, 15, b.stream());
    weight_ = device_memory(pairs * 4), expert_ = device_memory(pairs * 4), place_ = device_memory(pairs * 4);
    first_ = device_memory((e + 1) * 4),
    counts_ = device_memory(cuda::moe_order_counts(c.rows, c.experts) * 4);
    h_ = device_memory(pairs * k), h_scale_ = device_memory(k / 128 * cuda::block_pitch(pairs) * 4);
    product_ = device_memory(pairs * inner),
    product_scale_ = device_memory(inner / 128 * cuda::block_pitch(pairs) * 4);
    parts_ = device_memory(pairs * k * 2), y_ = device_memory(c.rows * k * 4);
    for (const cuda::Buffer* m : {&place_, &h_, &h_scale_, &product_, &product_scale_, &parts_, &y_})
      SE_CUDA(cudaMemset(m->data(), 0xff, size_t(m->bytes())));
    order_ = {weight_.ptr<float>(),
              expert_.ptr<int32_t>(),
              place_.ptr<int32_t>(),
              first_.ptr<int32_t>(),
              counts_.ptr<int32_t>()};
    p_.x = x_on_.ptr<float>(), p_.norm = norm_on_.ptr<float>(), p_.eps = 1e-6f;
    p_.up = up_.ptr<uint8_t>(), p_.up_scale = up_scale_.ptr<float>();
    p_.down = down_.ptr<uint8_t>(), p_.down_scale = down_scale_.ptr<float>();
    p_.rows = c.rows, p_.k = c.k, p_.experts = c.experts, p_.top_k = c.top_k, p_.inner = c.inner;
    p_.order = order_, p_.h = h_.ptr<uint8_t>(), p_.h_scale = h_scale_.ptr<float>();
    p_.product = product_.ptr<uint8_t>(), p_.product_scale = product_scale_.ptr<float>();
    p_.parts = parts_.data(), p_.y = y_.ptr<float>();
    SE_CUDA(cudaDeviceSynchronize());
  }
  void order(Bench& b) const {
    cuda::moe_order(logits_on_.ptr<float>(), c_.rows, c_.experts, c_.top_k, true, order_, b.stream());
  }
  void all(Bench& b) const {
    order(b);
    cuda::moe_prompt_sort(p_, b.stream()), cuda::moe_prompt_up(p_, b.stream());
    cuda::moe_prompt_down(p_, b.stream()), cuda::moe_prompt_combine(p_, b.stream());
  }
  const cuda::MoePromptParams& params() const { return p_; }
  std::vector<float> y() const { return download<float>(y_.data(), int64_t(c_.rows) * c_.k); }

  // Every choice, weight (to 1e-6) and place against the host.
  bool order_right() const {
    const size_t rows = size_t(c_.rows), e = size_t(c_.experts), n = size_t(c_.top_k);
    const auto expert = download<int32_t>(expert_.data(), int64_t(rows * n)),
               place = download<int32_t>(place_.data(), int64_t(rows * n)),
               first = download<int32_t>(first_.data(), int64_t(e + 1));
    const auto weight = download<float>(weight_.data(), int64_t(rows * n));
    std::vector<std::vector<size_t>> of(e);
    for (size_t r = 0; r < rows; ++r) {
      std::vector<int32_t> by(e);
      std::iota(by.begin(), by.end(), 0);
      const float* l = &logits_[r * e];
      std::stable_sort(by.begin(), by.end(), [&](int32_t a, int32_t c) { return l[a] > l[c]; });
      double sum = 0;
      for (size_t j = 0; j < n; ++j) sum += std::exp(double(l[by[j]]) - double(l[by[0]]));
      for (size_t j = 0; j < n; ++j) {
        const double w = std::exp(double(l[by[j]]) - double(l[by[0]])) / sum;
        if (expert[r * n + j] != by[j] || !(std::abs(w - double(weight[r * n + j])) < 1e-6)) return false;
        of[size_t(by[j])].push_back(r * n + j);
      }
    }
    int32_t at = 0;
    for (size_t x = 0; x < e; ++x) {
      if (first[x] != at) return false;
      for (const size_t pair : of[x])
        if (place[pair] != at++) return false;
    }
    return first[e] == at;
  }

  struct Errors {
    double h = 0, product = 0, parts = 0,
           y = 0;  // as the steps below count them; limits 1.001, 1, 2^-9, 1e-6
  };
  // Every step-th pair (y: its row).
  Errors errors(Bench& b, int step) const {
    const int64_t k = c_.k, inner = c_.inner, pairs = int64_t(c_.rows) * c_.top_k;
    const auto expert = download<int32_t>(expert_.data(), pairs),
               place = download<int32_t>(place_.data(), pairs);
    const auto weight = download<float>(weight_.data(), pairs);
    const auto h = download<uint8_t>(h_.data(), pairs * k),
               product = download<uint8_t>(product_.data(), pairs * inner);
    const auto h_scale = download<float>(h_scale_.data(), k / 128 * cuda::block_pitch(pairs));
    const auto product_scale = download<float>(product_scale_.data(), inner / 128 * cuda::block_pitch(pairs));
    const auto parts = download<uint16_t>(parts_.data(), pairs * k);
    const auto got = y();
    cuda::Buffer out = device_memory(std::max(2 * inner, k) * 8), size = device_memory(out.bytes());
    Errors worst;
    const auto worse = [](double& of, double e) { of = e < 1e30 ? std::max(of, e) : 1e30; };
    const auto given =
        [&](const std::vector<uint8_t>& codes, const std::vector<float>& scale, int64_t at, int64_t n) {
          std::vector<float> v(static_cast<size_t>(n));
          for (int64_t i = 0; i < n; ++i)
            v[size_t(i)] = e4m3_to_f32(codes[size_t(at * n + i)]) *
                           scale[size_t(i / 128 * cuda::block_pitch(pairs) + at)];
          return v;
        };
    const auto reference = [&](const uint8_t* w, const float* scale, int64_t n, const std::vector<float>& v) {
      const cuda::Buffer on = upload(v);
      reference_linear(w,
                       scale,
                       int(n),
                       int(v.size()),
                       on.ptr<float>(),
                       1,
                       out.ptr<double>(),
                       size.ptr<double>(),
                       b.stream());
      b.stream().synchronize();
      return std::pair{download<double>(out.data(), n), download<double>(size.data(), n)};
    };
    for (int64_t pair = 0; pair < pairs; pair += step) {
      const int64_t row = pair / c_.top_k, at = place[size_t(pair)], e = expert[size_t(pair)];
      const float* x = &x_[size_t(row * k)];
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += double(x[i]) * double(x[i]);
      const double f = 1 / std::sqrt(sum / double(k) + 1e-6);
      const std::vector<float> in = given(h, h_scale, at, k), mid = given(product, product_scale, at, inner);
      for (int64_t from = 0; from < k; from += 128) {
        double most = 0;
        for (int64_t i = from; i < from + 128; ++i)
          most = std::max(most, std::abs(double(x[i]) * f * double(norm_[size_t(i)])));
        for (int64_t i = from; i < from + 128; ++i) {
          const double want = double(x[i]) * f * double(norm_[size_t(i)]);
          worse(worst.h, std::abs(double(in[size_t(i)]) - want) / (std::abs(want) / 16 + most / 448 / 1024));
        }
      }
      const auto [both, both_size] = reference(
          p_.up + e * 2 * inner * k, p_.up_scale + e * (2 * inner / 128) * (k / 128), 2 * inner, in);
      for (int64_t from = 0; from < inner; from += 128) {
        double most = 0;
        const auto want = [&, &up = both](int64_t i) {
          return up[size_t(i)] / (1 + std::exp(-up[size_t(i)])) * up[size_t(inner + i)];
        };
        for (int64_t i = from; i < from + 128; ++i) most = std::max(most, std::abs(want(i)));
        for (int64_t i = from; i < from + 128; ++i)
          worse(worst.product,
                std::abs(double(mid[size_t(i)]) - want(i)) /
                    (std::abs(want(i)) * (1 / 16. + 1 / 128.) + most * 0x1p-8));
      }
      const auto [down, down_size] =
          reference(p_.down + e * k * inner, p_.down_scale + e * ((k + 127) / 128) * (inner / 128), k, mid);
      for (int64_t i = 0; i < k; ++i) {
        const double part = double(bf16_to_f32(parts[size_t(at * k + i)])), want = down[size_t(i)];
        worse(worst.parts,
              std::max(0.0, std::abs(part - want) - std::abs(want) * 0x1p-9) / down_size[size_t(i)]);
        double total = double(x[i]), terms = std::abs(total);
        for (int64_t j = row * c_.top_k; j < (row + 1) * c_.top_k; ++j) {
          const double term = double(weight[size_t(j)]) *
                              double(bf16_to_f32(parts[size_t(int64_t(place[size_t(j)]) * k + i)]));
          total += term, terms += std::abs(term);
        }
        worse(worst.y, std::abs(double(got[size_t(row * k + i)]) - total) / terms);
      }
    }
    return worst;
  }

 private:
  Case c_;
  std::vector<float> x_, norm_, logits_;
  cuda::Buffer x_on_, norm_on_, logits_on_, up_, up_scale_, down_, down_scale_, weight_, expert_, place_,
      first_, counts_, h_, h_scale_, product_, product_scale_, parts_, y_;
  cuda::MoeOrder order_;
  cuda::MoePromptParams p_;
};

void check(Bench& b, const Prompt& m, const Case& c, int step, bool always) {
  m.all(b);
  b.stream().synchronize();
  const std::string what = format("{} rows of {}, {} of {} experts of {}{}",
                                  c.rows,
                                  c.k,
                                  c.top_k,
                                  c.experts,
                                  c.inner,
                                  c.one_sided ? ", one-sided" : "");
  b.check("moe order " + what, m.order_right(), 0, always);
  const Prompt::Errors e = m.errors(b, step);
  b.check("moe prompt " + what + ": codes", e.h <= 1.001, e.h, always);
  b.check("moe prompt " + what + ": product", e.product <= 1, e.product, always);
  b.check("moe prompt " + what + ": parts", e.parts <= 0x1p-9, e.parts, always);
  b.check("moe prompt " + what + ": sum", e.y <= 1e-6, e.y, always);
}

}  // namespace

void moe_prompt_checks(Bench& b) {
  for (const Case& c : {Case{1, 128, 128, 4, 1},
                        Case{300, 512, 256, 9, 3},
                        Case{257, 384, 384, 200, 8},
                        Case{700, 256, 128, 24, 8, true}}) {
    const Prompt m(c, b);
    check(b, m, c, c.rows > 1 ? 37 : 1, true);
  }
  const Case c{300, 512, 256, 9, 3};
  Case fewer = c;
  fewer.rows = 100;
  const Prompt many(c, b), few(fewer, b);
  many.all(b), few.all(b);
  b.stream().synchronize();
  const auto x = few.y(), y = many.y();
  b.check("moe prompt: no batch mate shows", std::equal(x.begin(), x.end(), y.begin()), 0, true);
}

void moe_prompt_cases(Bench& b) {
  for (const int rows : {8192, 2048}) {
    const Case c{rows, 2048, 768, 128, 8};
    const Prompt m(c, b);
    check(b, m, c, 4099, false);
    const double pairs = double(rows) * c.top_k, up = pairs * 4.0 * c.inner * c.k, down = up / 2;
    const std::string shape = format("{} rows of 2048, 8 of 128 experts of 768", rows);
    b.report_flops("moe_up", shape, up, 0, b.measure([&] { cuda::moe_prompt_up(m.params(), b.stream()); }));
    b.report_flops(
        "moe_down", shape, down, 0, b.measure([&] { cuda::moe_prompt_down(m.params(), b.stream()); }));
    b.report_flops("moe_up + moe_down", shape, up + down, 0, b.measure([&] {
      cuda::moe_prompt_up(m.params(), b.stream()), cuda::moe_prompt_down(m.params(), b.stream());
    }));
    const double k = c.k;
    b.report("moe_order", shape, rows * c.experts * 4.0, 0, b.measure([&] { m.order(b); }));
    b.report("moe_sort", shape, rows * k * 4 + pairs * k, 0, b.measure([&] {
      cuda::moe_prompt_sort(m.params(), b.stream());
    }));
    b.report("moe_combine", shape, pairs * k * 2 + rows * k * 8, 0, b.measure([&] {
      cuda::moe_prompt_combine(m.params(), b.stream());
    }));
    b.report_flops("moe_prompt", shape + ", all but the router", up + down, 0, b.measure([&] { m.all(b); }));
  }
}

}  // namespace se::kbench
