// Products with weights in GGUF's blocks, against the CPU's linear (Compute::kDefault) in this very program.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <thread>

#include "base/fmt.h"
#include "base/half.h"
#include "base/rng.h"
#include "device/cpu/thread_pool.h"
#include "kbench/kbench.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/skinny_blocks_cuda.h"

namespace se::kbench {
namespace {

using cuda::BlockWeight;
constexpr BlockWeight kTypes[] = {BlockWeight::kQ8_0, BlockWeight::kQ4_K, BlockWeight::kQ6_K};
constexpr DType kDTypes[] = {DType::kQ8_0, DType::kQ4_K, DType::kQ6_K};
constexpr const char* kNames[] = {"Q8_0", "Q4_K", "Q6_K"};

struct Case {
  BlockWeight type;
  int n, k, rows;
  bool bias = false, residual = false;
  int distinct = 0;  // rows of w that differ; they repeat. 0: all
};

std::vector<uint8_t> make_rows(const Case& c, int rows) {
  std::vector<uint8_t> w(size_t(rows) * size_t(cuda::block_row_bytes(c.type, c.k)));
  Rng rng(uint64_t(c.n) + uint64_t(c.k));
  for (uint8_t& b : w) b = uint8_t(rng.below(256));
  const size_t step = c.type == BlockWeight::kQ8_0 ? 34 : c.type == BlockWeight::kQ4_K ? 144 : 210;
  for (size_t b = 0; b < w.size(); b += step) {  // factors are numbers
    const auto put = [&](size_t at, float x) {
      const uint16_t h = f32_to_f16(x);
      std::memcpy(w.data() + b + at, &h, 2);
    };
    put(c.type == BlockWeight::kQ6_K ? 208 : 0, float(rng.uniform() - 0.5) * 0.01f);
    if (c.type == BlockWeight::kQ4_K) put(2, float(rng.uniform()) * 0.01f);
  }
  return w;
}

class Product {
 public:
  explicit Product(const Case& c) : c_(c), distinct_(c.distinct ? c.distinct : c.n) {
    w_ = make_rows(c, distinct_);
    const int64_t row_bytes = cuda::block_row_bytes(c.type, c.k);
    w_on_ = device_memory((c.n * row_bytes + 15) / 16 * 16);
    SE_CUDA(cudaMemset(w_on_.data(), 0, size_t(w_on_.bytes())));  // kernels read whole 16 bytes
    for (int done = 0; done < c.n; done += distinct_)
      SE_CUDA(cudaMemcpy(w_on_.data() + done * row_bytes,
                         w_.data(),
                         size_t(std::min(distinct_, c.n - done) * row_bytes),
                         cudaMemcpyHostToDevice));
    x_.resize(size_t(c.rows) * size_t(c.k)), bias_.resize(size_t(c.n));
    residual_.resize(size_t(c.rows) * size_t(c.n));
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = i % 7000 < 64 ? 0 : 3 * random_float(5, i);
    for (size_t i = 0; i < bias_.size(); ++i) bias_[i] = random_float(6, i % size_t(distinct_));
    for (size_t i = 0; i < residual_.size(); ++i) residual_[i] = random_float(7, i);
    x_on_ = upload(x_), bias_on_ = upload(bias_), residual_on_ = upload(residual_);
    y_ = device_memory(int64_t(c.rows) * c.n * 4);
    SE_CUDA(cudaMemset(y_.data(), 0xff, size_t(y_.bytes())));
    p_.w = w_on_.data(), p_.type = c.type, p_.n = c.n, p_.k = c.k, p_.rows = c.rows;
    p_.x = x_on_.ptr<float>(), p_.y = y_.ptr<float>();
    if (c.bias) p_.bias = bias_on_.ptr<float>();
    if (c.residual) p_.residual = residual_on_.ptr<float>();
    SE_CUDA(cudaDeviceSynchronize());
  }
  void enqueue(Bench& b) const { cuda::skinny_blocks(p_, b.stream()); }
  cuda::SkinnyBlocksParams& params() { return p_; }
  std::vector<float> y() const { return download<float>(y_.data(), int64_t(c_.rows) * c_.n); }
  double bytes() const { return double(w_on_.bytes()) + c_.rows * (c_.n + c_.k) * 4.0; }
  // Of a row's greatest; `bits`: how many results are not the CPU's bits.
  double error(int64_t& bits) const {
    ThreadPool pool(int(std::clamp(std::thread::hardware_concurrency(), 1u, 16u)));
    Stream stream(pool);
    Arena scratch;
    std::vector<float> x = x_, bias = bias_, want(size_t(c_.rows) * size_t(distinct_));
    std::vector<uint8_t> w = w_;
    const DType type = kDTypes[int(c_.type)];
    linear(TensorView::of(x.data(), DType::kF32, {c_.rows, c_.k}),
           Weight(TensorView::of(w.data(), type, {distinct_, c_.k})),
           c_.bias ? TensorView::of(bias.data(), DType::kF32, {distinct_}) : TensorView(),
           TensorView::of(want.data(), DType::kF32, {c_.rows, distinct_}),
           Compute::kDefault,
           scratch,
           stream);
    const auto got = y();
    double worst = 0;
    bits = 0;
    for (int t = 0; t < c_.rows; ++t) {
      double most = 1e-30;
      for (int o = 0; o < distinct_; ++o)
        most = std::max(most, std::abs(double(want[size_t(t * distinct_ + o)])));
      for (int o = 0; o < c_.n; ++o) {
        const size_t at = size_t(t) * size_t(c_.n) + size_t(o);
        float ref = want[size_t(t * distinct_ + o % distinct_)];
        if (c_.residual) ref += residual_[at];
        bits += std::memcmp(&ref, &got[at], 4) != 0;
        const double e = std::abs(double(ref) - double(got[at])) / most;
        if (!(e < 1e30)) return 1e30;
        worst = std::max(worst, e);
      }
    }
    return worst;
  }

 private:
  Case c_;
  int distinct_;
  std::vector<uint8_t> w_;
  std::vector<float> x_, bias_, residual_;
  cuda::Buffer w_on_, x_on_, bias_on_, residual_on_, y_;
  cuda::SkinnyBlocksParams p_;
};

// Where warps share a row's blocks: f32 sums of up to 128 blocks in another order, of terms up to some tens
// of the result.
constexpr double kTolerance = 2e-5;

std::string name(const Case& c) {
  return format("{} [{}, {}] x {} rows", kNames[int(c.type)], c.n, c.k, c.rows);
}

}  // namespace

void gguf_checks(Bench& b) {
  for (BlockWeight type : kTypes) {
    const bool q8 = type == BlockWeight::kQ8_0;
    for (const Case& c : {Case{type, 1, 256, 1},
                          Case{type, 17, 512, 3, true, false},
                          Case{type, 40, q8 ? 896 : 768, 8, true, true},
                          Case{type, 33, q8 ? 32 : 256, 5},
                          Case{type, 1000, 2048, 1, false, true},
                          Case{type, 300, 4096, 7, false, false},
                          Case{type, 1003, 1024, 4, true, false},
                          Case{type, 17000, 1024, 2, true, false},
                          Case{type, 17003, 768, 7, true, true},
                          Case{type, 17003, 768, 3}}) {
      if (!b.next_is_ours()) continue;
      const Product p(c);
      p.enqueue(b);
      b.stream().synchronize();
      int64_t bits = 0;
      const double e = p.error(bits);
      const bool alone = c.n >= 16896;
      b.check(format("gguf {}: {} not the CPU's bits", name(c), bits),
              e <= kTolerance && (!alone || bits == 0),
              e,
              true);
    }
    if (!b.next_is_ours()) continue;
    Product many({type, 512, 2048, 8});
    many.enqueue(b);
    b.stream().synchronize();
    const auto all = many.y();
    many.params().rows = 3;
    many.enqueue(b);
    b.stream().synchronize();
    const auto few = many.y();
    b.check(format("gguf {}: no batch mate shows", kNames[int(type)]),
            std::equal(few.begin(), few.begin() + 3 * 512, all.begin()),
            0,
            true);
  }
}

void gguf_cases(Bench& b) {
  for (BlockWeight type : kTypes) {
    for (int rows : {1, 3, 8}) {
      for (const Case& c : {Case{type, 151936, 2048, rows, false, false, 512},
                            Case{type, 5120, 2048, rows, false, false, 512},
                            Case{type, 12288, 4096, rows, false, false, 512}}) {
        const Product p(c);
        p.enqueue(b);
        b.stream().synchronize();
        int64_t bits = 0;
        const double e = p.error(bits);
        b.check("gguf before timing", e <= kTolerance, e);
        b.report("skinny_blocks", name(c), p.bytes(), e, b.measure([&] { p.enqueue(b); }));
        std::deque<Product> all;
        for (int i = 0; i < copies_in_a_row(p.bytes()); ++i) all.emplace_back(c);
        b.report(
            "skinny_blocks in a row", name(c), p.bytes(), e, b.measure_in_a_row(int(all.size()), [&](int i) {
              all[size_t(i)].enqueue(b);
            }));
      }
    }
  }
}

}  // namespace se::kbench
