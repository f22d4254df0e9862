#include <algorithm>
#include <cmath>
#include <deque>

#include "base/fmt.h"
#include "base/half.h"
#include "kbench/kbench.h"
#include "kbench/reference.h"
#include "kernels/linear/skinny_cuda.h"

namespace se::kbench {
namespace {

struct Case {
  int n, k, rows;
  bool fp8 = true, norm = false, residual = false;
};

// Several copies of the weights, so that replays in turn do not read them from L2 even where they fit.
class Linear {
 public:
  Linear(const Case& c, Bench& b) : c_(c) {
    w_ = device_memory(int64_t(c.n) * c.k * (c.fp8 ? 1 : 2));
    const int64_t scales = int64_t((c.n + 127) / 128) * (c.k / 128);
    scale_ = device_memory(scales * 4);
    if (c.fp8)
      fill_bytes(w_.data(), w_.bytes(), false, 3, b.stream());
    else
      fill_random(w_.data(), w_.bytes() / 2, true, 1, 3, b.stream());
    fill_floats(scale_.data(), scales, 0.001f, 0.01f, 4, b.stream());
    x_.resize(size_t(c.rows) * size_t(c.k)), norm_.resize(size_t(c.k)),
        residual_.resize(size_t(c.rows) * size_t(c.n));
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = 2 * random_float(5, i);
    for (size_t i = 0; i < norm_.size(); ++i) norm_[i] = 1 + 0.5f * random_float(6, i);
    for (size_t i = 0; i < residual_.size(); ++i) residual_[i] = random_float(7, i);
    h_ = x_;
    for (size_t r = 0; c.norm && r < size_t(c.rows); ++r) {
      double sum = 0;
      for (size_t i = 0; i < size_t(c.k); ++i)
        sum += double(x_[r * size_t(c.k) + i]) * double(x_[r * size_t(c.k) + i]);
      for (size_t i = 0; i < size_t(c.k); ++i)
        h_[r * size_t(c.k) + i] =
            float(double(x_[r * size_t(c.k) + i]) * double(norm_[i]) / std::sqrt(sum / c.k + 1e-6));
    }
    const bool wide = c.rows > 8;
    std::vector<uint16_t> x16(h_.size());
    for (size_t i = 0; i < h_.size(); ++i) {
      x16[i] = c.fp8 ? f32_to_f16(h_[i]) : f32_to_bf16(h_[i]);
      if (wide) h_[i] = c.fp8 ? f16_to_f32(x16[i]) : bf16_to_f32(x16[i]);  // what the kernel is given
    }
    x_on_ = upload(x_), h_on_ = upload(h_), x16_on_ = upload(x16), norm_on_ = upload(norm_);
    residual_on_ = upload(residual_);
    y_ = device_memory(int64_t(c.rows) * c.n * 4);
    SE_CUDA(cudaMemset(y_.data(), 0xff, size_t(y_.bytes())));
    p_.w = w_.data(), p_.w_scale = c.fp8 ? scale_.ptr<float>() : nullptr;
    p_.n = c.n, p_.k = c.k, p_.rows = c.rows, p_.y = y_.ptr<float>();
    if (wide)
      p_.x16 = x16_on_.data();
    else
      p_.x = x_on_.ptr<float>();
    if (c.norm && !wide) p_.norm = norm_on_.ptr<float>(), p_.eps = 1e-6f;
    if (c.residual) p_.residual = residual_on_.ptr<float>();
    SE_CUDA(cudaDeviceSynchronize());
  }
  void enqueue(Bench& b) const { cuda::skinny_linear(p_, b.stream()); }
  cuda::SkinnyParams& params() { return p_; }
  std::vector<float> y() const { return download<float>(y_.data(), int64_t(c_.rows) * c_.n); }
  double bytes() const {
    return double(w_.bytes()) + (c_.fp8 ? double(scale_.bytes()) : 0) + c_.rows * (c_.n + c_.k) * 4.0;
  }
  // Of the sum of the terms' sizes.
  double error(Bench& b) const {
    const int64_t n = int64_t(c_.rows) * c_.n;
    cuda::Buffer want = device_memory(n * 8), size = device_memory(n * 8);
    reference_linear(p_.w,
                     p_.w_scale,
                     c_.n,
                     c_.k,
                     h_on_.ptr<float>(),
                     c_.rows,
                     want.ptr<double>(),
                     size.ptr<double>(),
                     b.stream());
    b.stream().synchronize();
    const auto w = download<double>(want.data(), n), s = download<double>(size.data(), n);
    const auto got = y();
    double worst = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      const double ref = w[i] + (c_.residual ? double(residual_[i]) : 0);
      const double e = std::abs(double(got[i]) - ref) / (s[i] + 1e-30);
      if (!(e < 1e30)) return 1e30;
      worst = std::max(worst, e);
    }
    return worst;
  }

 private:
  Case c_;
  cuda::Buffer w_, scale_, x_on_, h_on_, x16_on_, norm_on_, residual_on_, y_;
  std::vector<float> x_, h_, norm_, residual_;
  cuda::SkinnyParams p_;
};

std::string name(const Case& c) {
  return format("{} [{}, {}] x {} rows{}{}",
                c.fp8 ? "fp8" : "bf16",
                c.n,
                c.k,
                c.rows,
                c.norm ? ", norm" : "",
                c.residual ? ", residual" : "");
}

// Halves: 2^-12 a term (2^-18 with two pieces of BF16); f32 sums of up to 4,096 terms.
constexpr double kTolerance = 3e-4;

}  // namespace

void linear_checks(Bench& b) {
  for (const bool fp8 : {true, false}) {
    for (const Case& c : {Case{512, 2048, 1, fp8, true, false},
                          Case{2048, 4096, 1, fp8, false, true},
                          Case{384, 2048, 3, fp8, true, true},
                          Case{1000, 256, 5, fp8, false, false},
                          Case{300, 768, 8, fp8, true, false},
                          Case{40000, 512, 2, fp8, false, true},
                          Case{512, 2048, 9, fp8, false, true},
                          Case{200, 512, 17, fp8, false, false},
                          Case{5120, 2048, 48, fp8, false, false},
                          Case{333, 1280, 64, fp8, false, true},
                          Case{65600, 512, 48, fp8, false, true},
                          Case{66007, 256, 13, fp8, false, false},
                          Case{200, 12288, 20, fp8, false, true},
                          Case{2048, 4096, 9, fp8, false, true}}) {
      if (!b.next_is_ours()) continue;
      Linear l(c, b);
      l.enqueue(b);
      b.stream().synchronize();
      const double e = l.error(b);
      b.check("linear " + name(c), e <= kTolerance, e, true);
    }
  }
  struct Mates {
    int rows;
    bool norm;
    std::vector<int> few;  // other kernels
  };
  for (const bool fp8 : {true, false}) {
    for (const Mates& m : {Mates{8, true, {1, 3, 7}}, Mates{64, false, {9, 17, 48}}}) {
      if (!b.next_is_ours()) continue;
      Linear many({512, 2048, m.rows, fp8, m.norm, false}, b);
      many.enqueue(b);
      b.stream().synchronize();
      const auto all = many.y();
      for (const int rows : m.few) {
        many.params().rows = rows;
        many.enqueue(b);
        b.stream().synchronize();
        const auto few = many.y();
        b.check(format("linear: no batch mate shows, {} of {} rows", rows, m.rows),
                std::equal(few.begin(), few.begin() + rows * 512, all.begin()),
                0,
                true);
      }
    }
  }
}

void linear_cases(Bench& b) {
  for (const int rows : {1, 3, 8, 48}) {
    for (const Case& c : {Case{5120, 2048, rows, true, rows <= 8, false},
                          Case{2048, 4096, rows, true, false, true},
                          Case{151936, 2048, rows, true, rows <= 8, false},
                          Case{151936, 2048, rows, false, rows <= 8, false}}) {
      Linear l(c, b);
      l.enqueue(b);
      b.stream().synchronize();
      const double e = l.error(b);
      b.check("linear " + name(c), e <= kTolerance, e);
      b.report("skinny_linear", name(c), l.bytes(), e, b.measure([&] { l.enqueue(b); }));
      std::deque<Linear> all;
      for (int i = 0; i < copies_in_a_row(l.bytes()); ++i) all.emplace_back(c, b);
      b.report(
          "skinny_linear in a row", name(c), l.bytes(), e, b.measure_in_a_row(int(all.size()), [&](int i) {
            all[size_t(i)].enqueue(b);
          }));
    }
  }
}

}  // namespace se::kbench
