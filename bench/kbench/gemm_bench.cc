// Dense products for prompts: FP8 blocks by our own kernel, BF16 by cuBLASLt, and cuBLASLt's FP8 as measure.
#include <algorithm>
#include <cmath>

#include "base/fmt.h"
#include "base/half.h"
#include "kbench/kbench.h"
#include "kbench/reference.h"
#include "kernels/linear/block_gemm_cuda.h"
#include "kernels/linear/gemm_cuda.h"

namespace se::kbench {

float e4m3_to_f32(uint8_t code) {
  const int e = code >> 3 & 15, m = code & 7;
  const float x = e ? std::ldexp(float(8 + m), e - 10) : std::ldexp(float(m), -9);
  return code & 0x80 ? -x : x;
}

namespace {

// Of the sum of the terms' sizes. f32 sums in blocks; tensor cores cut what they add to 14 bits of the
// largest.
constexpr double kBlocks = 0x1p-9, kHalfUlp16 = 0x1p-9, kBf16Sums = 1e-5;

enum class To { kBf16, kF32, kProduct };

struct Case {
  int n, k, rows;
  To to = To::kBf16;
  bool norm = false;
};

std::string name(const Case& c) {
  constexpr const char* kTo[] = {"bf16", "f32 + residual", "product"};
  return format("[{}, {}] x {} rows -> {}{}", c.n, c.k, c.rows, kTo[int(c.to)], c.norm ? ", norm" : "");
}

class Dense {
 public:
  Dense(const Case& c, Bench& b) : c_(c) {
    const int64_t n = c.n, k = c.k, rows = c.rows;
    w_ = device_memory(n * k), w_scale_ = device_memory((n + 127) / 128 * (k / 128) * 4);
    fill_bytes(w_.data(), n * k, false, 61, b.stream());
    fill_floats(w_scale_.data(), (n + 127) / 128 * (k / 128), 0.001f, 0.01f, 62, b.stream());
    x_ = device_memory(rows * k * 4), codes_ = device_memory(rows * k),
    scale_ = device_memory(k / 128 * cuda::block_pitch(rows) * 4);
    fill_floats(x_.data(), rows * k, -2, 2, 63, b.stream());
    norm_ = device_memory(k * 4), residual_ = device_memory(rows * n * 4), y_ = device_memory(rows * n * 4);
    fill_floats(norm_.data(), k, 0.5f, 1.5f, 64, b.stream());
    fill_floats(residual_.data(), rows * n, -1, 1, 65, b.stream());
    SE_CUDA(cudaMemset(y_.data(), 0xff, size_t(y_.bytes())));
    product_scale_ = device_memory((n / 256 + 1) * cuda::block_pitch(rows) * 4);
    SE_CUDA(cudaMemset(product_scale_.data(), 0xff, size_t(product_scale_.bytes())));
    SE_CUDA(cudaMemset(scale_.data(), 0, size_t(scale_.bytes())));  // a row's end is no row's
    q_.x = x_.ptr<float>(), q_.rows = c.rows, q_.k = c.k, q_.out_rows = c.rows;
    if (c.norm) q_.norm = norm_.ptr<float>(), q_.eps = 1e-6f;
    q_.codes = codes_.ptr<uint8_t>(), q_.scale = scale_.ptr<float>();
    p_.w = w_.ptr<uint8_t>(), p_.w_scale = w_scale_.ptr<float>(), p_.x = q_.codes, p_.x_scale = q_.scale;
    p_.n = c.n, p_.k = c.k, p_.rows = c.rows;
    if (c.to == To::kBf16) p_.y16 = y_.data();
    if (c.to == To::kF32) p_.y = y_.ptr<float>(), p_.residual = residual_.ptr<float>();
    if (c.to == To::kProduct) p_.product = y_.ptr<uint8_t>(), p_.product_scale = product_scale_.ptr<float>();
    SE_CUDA(cudaDeviceSynchronize());
  }
  void quantise(Bench& b) const { cuda::block_quantise(q_, b.stream()); }
  void enqueue(Bench& b) const { cuda::block_gemm(p_, b.stream()); }
  const cuda::BlockGemmParams& params() const { return p_; }
  double flops() const { return 2.0 * c_.n * c_.k * c_.rows; }
  std::vector<uint8_t> bytes() const { return download<uint8_t>(y_.data(), y_.bytes()); }

  // Codes against x: of half a step, at most 1 (and a hair, for the f32 that leads there).
  double quantise_error() const {
    const auto x = download<float>(x_.data(), int64_t(c_.rows) * c_.k),
               norm = download<float>(norm_.data(), c_.k);
    const std::vector<float> got = given();
    double worst = 0;
    for (size_t r = 0; r < size_t(c_.rows); ++r) {
      double sum = 0;
      for (size_t i = 0; i < size_t(c_.k); ++i)
        sum += double(x[r * size_t(c_.k) + i]) * double(x[r * size_t(c_.k) + i]);
      const double f = c_.norm ? 1 / std::sqrt(sum / c_.k + 1e-6) : 1;
      for (size_t from = 0; from < size_t(c_.k); from += 128) {
        double most = 0;
        const auto want = [&](size_t i) {
          return double(x[r * size_t(c_.k) + from + i]) * (c_.norm ? f * double(norm[from + i]) : 1);
        };
        for (size_t i = 0; i < 128; ++i) most = std::max(most, std::abs(want(i)));
        for (size_t i = 0; i < 128; ++i) {
          const double e = std::abs(double(got[r * size_t(c_.k) + from + i]) - want(i)) /
                           (std::abs(want(i)) / 16 + most / 448 / 1024);
          if (!(e < 1e30)) return 1e30;
          worst = std::max(worst, e);
        }
      }
    }
    return worst;
  }

  // Rows first, first + step, ...: errors as the kind of output counts them.
  double error(Bench& b, int step) const {
    const std::vector<float> x = given();
    std::vector<float> some;
    std::vector<int64_t> which;
    for (int64_t r = 0; r < c_.rows; r += step) {
      which.push_back(r);
      some.insert(some.end(), x.begin() + r * c_.k, x.begin() + (r + 1) * c_.k);
    }
    const int64_t rows = int64_t(which.size());
    const cuda::Buffer on = upload(some);
    cuda::Buffer want = device_memory(rows * c_.n * 8), size = device_memory(rows * c_.n * 8);
    reference_linear(p_.w,
                     p_.w_scale,
                     c_.n,
                     c_.k,
                     on.ptr<float>(),
                     int(rows),
                     want.ptr<double>(),
                     size.ptr<double>(),
                     b.stream());
    b.stream().synchronize();
    const auto w = download<double>(want.data(), rows * c_.n), s = download<double>(size.data(), rows * c_.n);
    const auto residual = download<float>(residual_.data(), int64_t(c_.rows) * c_.n);
    const auto raw = bytes();
    const auto scales = download<float>(product_scale_.data(), product_scale_.bytes() / 4);
    double worst = 0;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t r = which[size_t(i)];
      const double *wr = &w[size_t(i * c_.n)], *sr = &s[size_t(i * c_.n)];
      for (int64_t o = 0; o < (c_.to == To::kProduct ? c_.n / 2 : c_.n); ++o) {
        double e = 1e30;
        if (c_.to == To::kProduct) {
          const int64_t half = c_.n / 2, block = o / 128 * 128;
          double most = 0;
          const auto product = [&](int64_t at) { return wr[at] / (1 + std::exp(-wr[at])) * wr[half + at]; };
          for (int64_t at = block; at < block + 128; ++at) most = std::max(most, std::abs(product(at)));
          const double got = double(e4m3_to_f32(raw[size_t(r * half + o)])) *
                             double(scales[size_t(o / 128 * cuda::block_pitch(c_.rows) + r)]);
          // Half a step of E4M3 and of BF16, and what the sums' errors make of the product.
          e = std::abs(got - product(o)) / (std::abs(product(o)) * (1 / 16. + 1 / 128.) + most * 0x1p-8);
        } else if (c_.to == To::kF32) {
          e = std::abs(double(reinterpret_cast<const float*>(raw.data())[r * c_.n + o]) - wr[o] -
                       double(residual[size_t(r * c_.n + o)])) /
              sr[o];
        } else {
          const double got = double(bf16_to_f32(reinterpret_cast<const uint16_t*>(raw.data())[r * c_.n + o]));
          e = std::max(0.0, std::abs(got - wr[o]) - std::abs(wr[o]) * kHalfUlp16) / sr[o];
        }
        if (!(e < 1e30)) return 1e30;
        worst = std::max(worst, e);
      }
    }
    return worst;
  }

 private:
  std::vector<float> given() const {  // the rows as the product is given them
    const auto codes = download<uint8_t>(codes_.data(), int64_t(c_.rows) * c_.k);
    const auto scale = download<float>(scale_.data(), int64_t(c_.k / 128) * cuda::block_pitch(c_.rows));
    std::vector<float> x(codes.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t r = i / size_t(c_.k), b = i % size_t(c_.k) / 128;
      x[i] = e4m3_to_f32(codes[i]) * scale[b * size_t(cuda::block_pitch(c_.rows)) + r];
    }
    return x;
  }
  Case c_;
  cuda::Buffer w_, w_scale_, x_, codes_, scale_, norm_, residual_, y_, product_scale_;
  cuda::BlockQuantiseParams q_;
  cuda::BlockGemmParams p_;
};

double limit(const Case& c) { return c.to == To::kProduct ? 1 : kBlocks; }

void check(Bench& b, const Case& c, int step, bool always) {
  Dense d(c, b);
  d.quantise(b), d.enqueue(b);
  b.stream().synchronize();
  if (step == 1) {
    const double q = d.quantise_error();
    b.check("block quantise " + name(c), q <= 1.001, q, always);
  }
  const double e = d.error(b, step);
  b.check("block gemm " + name(c), e <= limit(c), e, always);
}

// cuBLASLt: BF16 against double, and that rows do not show.
void check_bf16(Bench& b, int n, int k, int rows) {
  const auto plan = cuda::Gemm::plan(cuda::GemmKind::kBF16, n, k, rows);
  if (!plan.ok()) return b.check(plan.status().message(), false, 0);
  cuda::Buffer w = device_memory(int64_t(n) * k * 2), x = device_memory(int64_t(rows) * k * 2);
  fill_random(w.data(), int64_t(n) * k, true, 1, 71, b.stream());
  fill_random(x.data(), int64_t(rows) * k, true, 2, 72, b.stream());
  cuda::Buffer y = device_memory(int64_t(rows) * n * 4), few = device_memory(int64_t(rows) * n * 4);
  plan->run(w.data(), x.data(), rows, y.data(), false, b.stream());
  plan->run(w.data(), x.data(), (rows + 2) / 3, few.data(), false, b.stream());
  b.stream().synchronize();
  const auto x16 = download<uint16_t>(x.data(), int64_t(rows) * k);
  std::vector<float> x32(x16.size());
  for (size_t i = 0; i < x32.size(); ++i) x32[i] = bf16_to_f32(x16[i]);
  const cuda::Buffer on = upload(x32);
  cuda::Buffer want = device_memory(int64_t(rows) * n * 8), size = device_memory(int64_t(rows) * n * 8);
  reference_linear(
      w.data(), nullptr, n, k, on.ptr<float>(), rows, want.ptr<double>(), size.ptr<double>(), b.stream());
  b.stream().synchronize();
  const int64_t all = int64_t(rows) * n;
  const auto ref = download<double>(want.data(), all), s = download<double>(size.data(), all);
  const auto got = download<float>(y.data(), all), third = download<float>(few.data(), all);
  double worst = 0;
  for (size_t i = 0; i < ref.size(); ++i) {
    const double e = std::abs(double(got[i]) - ref[i]) / s[i];
    worst = e < 1e30 ? std::max(worst, e) : 1e30;
  }
  const std::string what = format("gemm bf16 [{}, {}] x {} rows", n, k, rows);
  b.check(what, worst <= kBf16Sums, worst, true);
  const bool same = std::equal(third.begin(), third.begin() + int64_t((rows + 2) / 3) * n, got.begin());
  b.check(what + ": a third of the rows, the same bits", same, 0, true);
}

void time_cublas(Bench& b, cuda::GemmKind kind, const char* what, int n, int k, int rows) {
  const auto plan = cuda::Gemm::plan(kind, n, k, rows);
  if (!plan.ok()) {
    std::printf("# %s\n", plan.status().message().c_str());
    return;
  }
  const int64_t bytes = kind == cuda::GemmKind::kBF16 ? 2 : 1;
  cuda::Buffer w = device_memory(int64_t(n) * k * bytes), x = device_memory(int64_t(rows) * k * bytes);
  cuda::Buffer y = device_memory(int64_t(rows) * n * 4);
  cuda::Buffer scale = device_memory(int64_t(std::max(rows, n)) * (k / 128 + 4) * 4);
  fill_floats(scale.data(), scale.bytes() / 4, 0.5f, 1, 73, b.stream());
  for (const cuda::Buffer* m : {&w, &x}) {
    if (bytes == 2)
      fill_random(m->data(), m->bytes() / 2, true, 1, 74, b.stream());
    else
      fill_bytes(m->data(), m->bytes(), false, 75, b.stream());
  }
  const float* of = bytes == 1 ? scale.ptr<float>() : nullptr;
  b.report_flops(what, format("[{}, {}] x {} rows", n, k, rows), 2.0 * n * k * rows, 0, b.measure([&] {
    plan->run(w.data(), x.data(), rows, y.data(), false, b.stream(), of, of);
  }));
}

}  // namespace

void block_gemm_checks(Bench& b) {
  for (const To to : {To::kBf16, To::kF32}) {
    check(b, {256, 128, 1, to}, 1, true);
    check(b, {1000, 384, 127, to, true}, 1, true);
    check(b, {8, 640, 128, to}, 1, true);
    check(b, {512, 2048, 129, to}, 1, true);
    check(b, {136, 256, 2300, to, true}, 1, true);
  }
  check(b, {256, 128, 3, To::kProduct}, 1, true);
  check(b, {1536, 2048, 200, To::kProduct, true}, 1, true);
  Dense many({640, 512, 300}, b), few({640, 512, 100}, b);
  for (const Dense* d : {&many, &few}) d->quantise(b), d->enqueue(b);
  b.stream().synchronize();
  const auto x = few.bytes(), y = many.bytes();
  b.check("block gemm: no batch mate shows",
          std::equal(x.begin(), x.begin() + 100 * 640 * 2, y.begin()),
          0,
          true);
}

// By cuBLASLt, whose kernels racecheck does not bear: an op of its own.
void gemm_checks(Bench& b) {
  check_bf16(b, 128, 2048, 100);
  check_bf16(b, 1008, 496, 1000);
}

void gemm_cases(Bench& b) {
  for (const auto& [n, k] : {std::pair{8192, 8192}, {5120, 2048}, {2048, 4096}, {128, 2048}})
    time_cublas(b, cuda::GemmKind::kBF16, "gemm_bf16", n, k, 8192);
}

void block_gemm_cases(Bench& b) {
  time_cublas(b, cuda::GemmKind::kFp8, "cublaslt_fp8_tensor", 8192, 8192, 8192);
  time_cublas(b, cuda::GemmKind::kFp8, "cublaslt_fp8_tensor", 8192, 4096, 8192);
  for (const auto& [n, k] : {std::pair{8192, 8192}, {5120, 2048}, {2048, 4096}}) {
    const Case c{n, k, 8192};
    check(b, c, 977, false);
    Dense d(c, b);
    d.quantise(b);
    b.stream().synchronize();
    b.report_flops("block_gemm", name(c), d.flops(), 0, b.measure([&] { d.enqueue(b); }));
  }
  const Case c{2048, 4096, 8192, To::kF32};
  Dense d(c, b);
  d.quantise(b);
  b.stream().synchronize();
  b.report_flops("block_gemm", name(c), d.flops(), 0, b.measure([&] { d.enqueue(b); }));
}

}  // namespace se::kbench
