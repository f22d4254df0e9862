// The small ops of a decode layer: residual + RMSNorm, q/k norm + RoPE + KV write, argmax.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fmt.h"
#include "base/half.h"
#include "kbench/kbench.h"
#include "kernels/rmsnorm/rmsnorm_cuda.h"
#include "kernels/rope/rope_cuda.h"
#include "kernels/sample/argmax_cuda.h"

namespace se::kbench {
namespace {

std::vector<float> random_floats(size_t n, uint64_t seed, float scale) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = scale * random_float(seed, i);
  return x;
}

double norm_error(Bench& b, int rows, int k) {
  const size_t n = size_t(rows) * size_t(k);
  const auto x = random_floats(n, 1, 3), add = random_floats(n, 2, 3), w = random_floats(size_t(k), 3, 1);
  const cuda::Buffer x_on = upload(x), add_on = upload(add), w_on = upload(w),
                     out = device_memory(int64_t(n) * 4), half = device_memory(int64_t(n) * 2),
                     sum_on = device_memory(int64_t(n) * 4);
  cuda::NormParams p;
  p.x = x_on.ptr<float>(), p.add = add_on.ptr<float>(), p.sum = sum_on.ptr<float>(), p.w = w_on.ptr<float>();
  p.eps = 1e-6f, p.rows = rows, p.k = k, p.out = out.ptr<float>(), p.out16 = half.ptr<__half>();
  cuda::add_rms_norm(p, b.stream());
  b.stream().synchronize();
  const auto got = download<float>(out.data(), int64_t(n)), sums = download<float>(sum_on.data(), int64_t(n));
  const auto got16 = download<uint16_t>(half.data(), int64_t(n));
  double worst = 0;
  for (size_t r = 0; r < size_t(rows); ++r) {
    double square = 0;
    for (size_t i = r * size_t(k); i < (r + 1) * size_t(k); ++i) square += std::pow(double(x[i] + add[i]), 2);
    for (size_t d = 0; d < size_t(k); ++d) {
      const size_t i = r * size_t(k) + d;
      const double want = double(x[i] + add[i]) * double(w[d]) / std::sqrt(square / k + 1e-6);
      worst = std::max(worst, std::abs(double(got[i]) - want) / (std::abs(want) + 1e-3));
      if (sums[i] != x[i] + add[i] || !(double(got[i]) < 1e30)) return 1e30;
      if (std::abs(double(f16_to_f32(got16[i])) - want) > 1e-3 * (std::abs(want) + 1e-3)) return 1e30;
    }
  }
  return worst;
}

struct RopeCase {
  int tokens, q_heads, kv_heads, dim, pairs;
  bool interleaved, norm;
  cuda::KvType type;
};

class Rope {
 public:
  explicit Rope(const RopeCase& c) : c_(c), heads_(c.q_heads + 2 * c.kv_heads) {
    x_ = random_floats(size_t(c.tokens * heads_ * c.dim), 1, 4);
    qn_ = random_floats(size_t(c.dim), 2, 2), kn_ = random_floats(size_t(c.dim), 3, 2);
    for (int i = 0; i < c.pairs; ++i) frequency_.push_back(float(std::pow(1e6, -1.0 * i / c.pairs)));
    for (int t = 0; t < c.tokens; ++t) {
      pos_.push_back(t * 997 + (t % 2 ? 131071 : 0));
      slots_.push_back(t % 5 == 4 ? -1 : (int64_t(t / 3) * page_bytes() / 256) * 16 + t % 3 * 5);
    }
    pages_ = device_memory(int64_t(c.tokens / 3 + 1) * page_bytes());
    SE_CUDA(cudaMemset(pages_.data(), 0x5a, size_t(pages_.bytes())));
    x_on_ = upload(x_), qn_on_ = upload(qn_), kn_on_ = upload(kn_), f_on_ = upload(frequency_);
    pos_on_ = upload(pos_), slots_on_ = upload(slots_);
    p_.qkv = x_on_.ptr<float>(), p_.tokens = c.tokens, p_.q_heads = c.q_heads, p_.kv_heads = c.kv_heads;
    p_.dim = c.dim, p_.eps = 1e-6f, p_.rope = f_on_.ptr<float>(), p_.pairs = c.pairs,
    p_.interleaved = c.interleaved;
    if (c.norm) p_.q_norm = qn_on_.ptr<float>(), p_.k_norm = kn_on_.ptr<float>();
    p_.pos = pos_on_.ptr<int32_t>(), p_.slots = slots_on_.ptr<int64_t>(), p_.type = c.type;
    p_.k = pages_.data(), p_.v = pages_.data() + plane();
    p_.k_scale = pages_.data() + 2 * plane(), p_.v_scale = p_.k_scale + 16 * c.kv_heads * 4;
    p_.page_shift = 4, p_.item_stride = c.dim * size(), p_.head_stride = 16 * c.dim * size();
    p_.scale_item = 4, p_.scale_head = 64;
  }
  void enqueue(Bench& b) const { cuda::qk_norm_rope_write(p_, b.stream()); }
  double error() const {
    const auto got = download<float>(x_on_.data(), int64_t(x_.size()));
    const auto pages = download<uint8_t>(pages_.data(), pages_.bytes());
    double worst = 0;
    for (int t = 0; t < c_.tokens; ++t)
      for (int h = 0; h < heads_; ++h) worst = std::max(worst, head_error(t, h, got.data(), pages.data()));
    return worst;
  }

 private:
  int64_t size() const { return c_.type == cuda::KvType::kE4M3 ? 1 : 2; }
  int64_t plane() const { return int64_t(c_.kv_heads) * 16 * c_.dim * size(); }
  int64_t page_bytes() const { return (2 * plane() + 2 * 16 * c_.kv_heads * 4 + 255) / 256 * 256; }
  double head_error(int t, int h, const float* got, const uint8_t* pages) const {
    const bool q = h < c_.q_heads, v = h >= c_.q_heads + c_.kv_heads;
    const size_t dim = size_t(c_.dim), at = size_t(t * heads_ + h) * dim;
    std::vector<double> want(x_.begin() + int64_t(at), x_.begin() + int64_t(at + dim));
    double square = 0, most = 0;
    for (double x : want) square += x * x;
    if (!v && c_.norm)
      for (size_t d = 0; d < dim; ++d)
        want[d] *= double((q ? qn_ : kn_)[d]) / std::sqrt(square / c_.dim + 1e-6);
    for (size_t i = 0; !v && i < size_t(c_.pairs); ++i) {
      const double angle = double(float(pos_[size_t(t)]) * frequency_[i]);
      double &a = want[c_.interleaved ? 2 * i : i],
             &b = want[c_.interleaved ? 2 * i + 1 : i + size_t(c_.pairs)];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle), a = turned;
    }
    for (double x : want) most = std::max(most, std::abs(x));
    const int64_t slot = slots_[size_t(t)];
    const bool written = !q && slot >= 0;
    const double unit =
        c_.type == cuda::KvType::kE4M3 && written ? 1.0 / 16 : 1e-5;  // FP8: half a step, at the top
    double worst = 0;
    const int64_t kv = v ? h - c_.q_heads - c_.kv_heads : h - c_.q_heads, page = slot / 16 * 256,
                  item = slot % 16;
    for (size_t d = 0; d < dim; ++d) {
      worst = std::max(worst, std::abs(double(got[at + d]) - want[d]) / (most * unit) * 1e-5);
      if (!(std::abs(double(got[at + d])) < 1e30)) return 1e30;
      if (!written) continue;
      const uint8_t* cell = pages + page + (v ? plane() : 0) + kv * p_.head_stride + item * p_.item_stride;
      if (c_.type == cuda::KvType::kE4M3) {  // the code, decoded, is what attention is given
        const uint8_t code = cell[d];
        const int e = code >> 3 & 15, m = code & 7;
        const float scale = *reinterpret_cast<const float*>(
            pages + page + 2 * plane() + (v ? 16 * c_.kv_heads * 4 : 0) + kv * 64 + item * 4);
        const float x =
            float((code & 0x80 ? -1 : 1) * (e ? std::ldexp(1 + m / 8.0, e - 7) : std::ldexp(m / 8.0, -6))) *
            scale;
        if (x != got[at + d]) return 1e30;
      } else if (reinterpret_cast<const uint16_t*>(cell)[d] !=
                 (c_.type == cuda::KvType::kBF16 ? f32_to_bf16(got[at + d]) : f32_to_f16(got[at + d]))) {
        return 1e30;
      }
    }
    return worst;
  }

  RopeCase c_;
  int heads_;
  std::vector<float> x_, qn_, kn_, frequency_;
  std::vector<int32_t> pos_;
  std::vector<int64_t> slots_;
  cuda::Buffer pages_, x_on_, qn_on_, kn_on_, f_on_, pos_on_, slots_on_;
  cuda::RopeWriteParams p_;
};

class Argmax {
 public:
  Argmax(int rows, int64_t vocab, int kind) : rows_(rows), vocab_(vocab) {
    x_ = random_floats(size_t(rows * vocab), uint64_t(kind + 1), 10);
    for (size_t i = 0; kind == 1 && i < x_.size(); ++i) {  // ties and NaN
      x_[i] = std::floor(x_[i]);
      if (i % 7 == 0) x_[i] = std::numeric_limits<float>::quiet_NaN();
    }
    x_on_ = upload(x_), best_ = device_memory(int64_t(rows) * cuda::kArgmaxBlocks * 8);
    ready_ = upload(std::vector<int32_t>(size_t(rows), 0)), token_ = device_memory(int64_t(rows) * 4);
  }
  void enqueue(Bench& b) const {
    cuda::argmax({x_on_.ptr<float>(),
                  rows_,
                  vocab_,
                  best_.ptr<uint64_t>(),
                  ready_.ptr<int32_t>(),
                  token_.ptr<int32_t>()},
                 b.stream());
  }
  bool right() const {
    const auto got = download<int32_t>(token_.data(), rows_);
    for (size_t r = 0; r < size_t(rows_); ++r) {
      size_t best = 0;
      const float* x = x_.data() + r * size_t(vocab_);
      for (size_t i = 0; i < size_t(vocab_); ++i)
        if (x[i] > x[best] || (std::isnan(x[best]) && !std::isnan(x[i]))) best = i;
      if (got[r] != int32_t(best)) return false;
    }
    return true;
  }

 private:
  int rows_;
  int64_t vocab_;
  std::vector<float> x_;
  cuda::Buffer x_on_, best_, ready_, token_;
};

}  // namespace

void small_checks(Bench& b) {
  for (const auto& [rows, k] : {std::pair{1, 2048}, {7, 4}, {3, 5120}, {64, 1024}}) {
    const double e = norm_error(b, rows, k);
    b.check(format("add_rms_norm {} x {}", rows, k), e <= 2e-6, e, true);
  }
  using cuda::KvType;
  for (const RopeCase& c : {RopeCase{1, 32, 4, 128, 64, false, true, KvType::kBF16},
                            RopeCase{13, 5, 3, 64, 32, true, false, KvType::kF16},
                            RopeCase{9, 4, 2, 256, 32, false, true, KvType::kBF16},
                            RopeCase{48, 32, 4, 128, 64, false, true, KvType::kE4M3}}) {
    Rope r(c);
    r.enqueue(b);
    b.stream().synchronize();
    const double e = r.error();
    b.check(format("qk_norm_rope_write {} tokens, {} + {} x {}", c.tokens, c.q_heads, c.kv_heads, c.dim),
            e <= 1e-5,
            e,
            true);
  }
  for (int kind : {0, 1}) {
    for (int64_t vocab : {int64_t{1}, int64_t{31}, int64_t{151936}}) {
      Argmax a(3, vocab, kind);
      for (int i = 0; i < 2; ++i) a.enqueue(b);
      b.stream().synchronize();
      b.check(format("argmax of {}, kind {}", vocab, kind), a.right(), 0, true);
    }
  }
}

void small_cases(Bench& b) {
  for (int rows : {1, 8, 48}) {
    const int64_t n = int64_t(rows) * 2048;
    cuda::Buffer x = device_memory(n * 4), out = device_memory(n * 4), w = device_memory(2048 * 4);
    fill_floats(x.data(), n, -1, 1, 1, b.stream()), fill_floats(w.data(), 2048, 0, 1, 2, b.stream());
    cuda::NormParams p;
    p.x = p.add = x.ptr<float>(), p.w = w.ptr<float>(), p.rows = rows, p.k = 2048, p.out = out.ptr<float>();
    b.report("add_rms_norm", format("{} x 2048", rows), double(n) * 8, 0, b.measure([&] {
      cuda::add_rms_norm(p, b.stream());
    }));
    const Rope r({rows, 32, 4, 128, 64, false, true, cuda::KvType::kBF16});
    b.report("qk_norm_rope_write",
             format("{} rows, 32 + 4 x 128, bf16", rows),
             rows * 40 * 128 * 8.0,
             0,
             b.measure([&] { r.enqueue(b); }));
    const Argmax a(rows, 151936, 0);
    b.report("argmax", format("{} x 151936", rows), rows * 151936 * 4.0, 0, b.measure([&] { a.enqueue(b); }));
  }
}

}  // namespace se::kbench
