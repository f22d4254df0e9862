// SnapKV's votes and their pooling, against the CPU's logits and attn_scores in this very program, and
// against the double twin.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "base/fmt.h"
#include "base/half.h"
#include "base/rng.h"
#include "device/cpu/thread_pool.h"
#include "kbench/kbench.h"
#include "kernels/attention/attention.h"
#include "kernels/attn_scores/attn_scores.h"
#include "kernels/attn_scores/attn_scores_cuda.h"
#include "kernels/attn_scores/attn_scores_ref.h"
#include "kernels/topk/max_pool_cuda.h"
#include "kernels/topk/topk.h"
#include "kernels/topk/topk_cuda.h"

namespace se::kbench {
namespace {

struct Shape {
  std::vector<int64_t> parts;  // tokens of each
  int queries = 32, q_heads = 32, kv_heads = 4, dim = 128, page = 16, unit = 16;
  bool bf16 = true;
};

// A row whose parts lie in pages of their own, on the device and, the same bytes, on the host.
class Votes {
 public:
  Votes(const Shape& shape, uint64_t seed, Bench& b) : x_(shape), scale_(1 / std::sqrt(float(shape.dim))) {
    const int64_t key = int64_t(x_.dim) * 2, page_bytes = (x_.page * x_.kv_heads * key + 255) / 256 * 256;
    std::vector<std::vector<int64_t>> runs;
    int64_t pages = 0;
    for (int64_t tokens : x_.parts) {
      ordinals_ += tokens;
      pages += (tokens + x_.unit - 1) / x_.unit;
    }
    arena_ = device_memory(std::max<int64_t>(1, pages) * page_bytes);
    fill_random(arena_.data(), arena_.bytes() / 2, x_.bf16, 1, seed, b.stream());
    b.stream().synchronize();
    host_arena_ = download<char>(arena_.data(), arena_.bytes());
    q_ = std::vector<float>(size_t(x_.queries * x_.q_heads * x_.dim));
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = 4 * random_float(seed + 1, i);
    for (int64_t i = 0; i < x_.queries; ++i)
      last_.push_back(std::max<int64_t>(-1, ordinals_ - x_.queries + i));
    q_on_ = upload(q_), last_on_ = upload(last_);
    int64_t next = 0;
    tables_.resize(x_.parts.size());
    for (size_t i = 0; i < x_.parts.size(); ++i) {
      Tables& t = tables_[i];
      for (int64_t done = 0; done < x_.parts[i];
           done += x_.unit, ++next) {  // pages from the last to the first
        const int64_t in_page = x_.page - x_.unit, m = std::min<int64_t>(x_.unit, x_.parts[i] - done);
        t.runs.push_back(run((pages - 1 - next) * (page_bytes / 256) * x_.page + in_page, m));
      }
      t.counts = int32_t(t.runs.size()), t.tokens = int32_t(x_.parts[i]);
      t.runs.push_back(0);
      t.runs_on = upload(t.runs), t.start_on = upload(std::vector<int64_t>{0});
      t.offset_on = upload(std::vector<int64_t>{0});
      t.counts_on = upload(std::vector<int32_t>{t.counts}),
      t.tokens_on = upload(std::vector<int32_t>{t.tokens});
      for (const bool device : {false, true}) {
        AttentionPart part;
        part.logits = &logits_plain;
        part.planes[0] = TensorView::of(device ? arena_.data() : host_arena_.data(),
                                        x_.bf16 ? DType::kBF16 : DType::kF16,
                                        {int64_t{1} << 38, x_.page, x_.kv_heads, x_.dim});
        part.planes[0].stride = {256, key, x_.page * key, 2, 0};
        KvIndex& index = part.index;
        index.unit = x_.unit, index.page = x_.page, index.cap = t.counts;
        const auto view = [device](const cuda::Buffer& there, void* here, DType d, int64_t n) {
          return TensorView::of(device ? there.data() : here, d, {n});
        };
        index.runs = view(t.runs_on, t.runs.data(), DType::kI64, int64_t(t.runs.size()));
        index.start = view(t.start_on, &zero_, DType::kI64, 1);
        index.offset = view(t.offset_on, &zero_, DType::kI64, 1);
        index.counts = view(t.counts_on, &t.counts, DType::kI32, 1);
        index.tokens = view(t.tokens_on, &t.tokens, DType::kI32, 1);
        AttentionView& to = device ? on_device_ : on_host_;
        to.parts[size_t(to.n++)] = part;
      }
    }
    out_ = device_memory(std::max<int64_t>(1, x_.kv_heads * ordinals_) * 4 + 64);
    workspace_.emplace(device_memory(
        cuda::window_scores_bytes(x_.queries, x_.q_heads, x_.kv_heads, std::max<int64_t>(1, ordinals_))));
  }
  int64_t ordinals() const { return ordinals_; }
  const float* out() const { return out_.ptr<float>(); }
  double key_bytes() const { return double(ordinals_) * x_.kv_heads * x_.dim * 2; }
  double flops() const { return 2.0 * x_.queries * x_.q_heads * double(ordinals_) * x_.dim; }
  void enqueue(const ScoreSpec& spec, Bench& b) {
    const int64_t heads = spec.per_kv_head ? x_.kv_heads : 1;
    cuda::window_scores(spec,
                        on_device_,
                        TensorView::of(q_on_.data(), DType::kF32, {x_.queries, x_.q_heads, x_.dim}),
                        TensorView::of(last_on_.data(), DType::kI64, {x_.queries}),
                        scale_,
                        x_.kv_heads,
                        TensorView::of(out_.data(), DType::kF32, {heads, ordinals_}),
                        *workspace_,
                        b.stream());
  }
  std::vector<float> device_scores(const ScoreSpec& spec, Bench& b) {
    const int64_t n = (spec.per_kv_head ? x_.kv_heads : 1) * ordinals_;
    const std::vector<float> poison(size_t(n), std::numeric_limits<float>::quiet_NaN());
    SE_CUDA(cudaMemcpy(out_.data(), poison.data(), size_t(n) * 4, cudaMemcpyHostToDevice));
    SE_CUDA(cudaDeviceSynchronize());
    enqueue(spec, b);
    b.stream().synchronize();
    return download<float>(out_.data(), n);
  }
  // As the driver's score: logits of every part to their ordinals, then attn_scores; `slow`: the double twin.
  std::vector<float> host_scores(const ScoreSpec& spec, bool slow) {
    ThreadPool pool(int(std::clamp(std::thread::hardware_concurrency(), 1u, 16u)));
    Stream stream(pool);
    const int64_t w = x_.queries, places = ordinals_ + x_.unit, heads = spec.per_kv_head ? x_.kv_heads : 1;
    std::vector<float> all(size_t(w * x_.q_heads * ordinals_)), part(size_t(w * x_.q_heads * places));
    std::vector<int32_t> q_start{0, int32_t(w)}, from{0}, split{256}, pos(size_t(w), 0);
    std::vector<int64_t> item{0};
    int32_t id = 0, one = 1;
    StepRows rows;
    rows.q_start = TensorView::of(q_start.data(), DType::kI32, {2});
    rows.kv_from = TensorView::of(from.data(), DType::kI32, {1});
    rows.pos = TensorView::of(pos.data(), DType::kI32, {w});
    rows.item = TensorView::of(item.data(), DType::kI64, {1});
    rows.split = TensorView::of(split.data(), DType::kI32, {1}), rows.rows = 1;
    AttendArgs a;
    a.rows = &rows, a.q = TensorView::of(q_.data(), DType::kF32, {w, x_.q_heads, x_.dim}), a.scale = scale_;
    a.list = {TensorView::of(&id, DType::kI32, {1}), TensorView::of(&one, DType::kI32, {1}), 1};
    int64_t first = 0;
    for (int i = 0; w > 0 && i < on_host_.n; ++i) {
      if (x_.parts[size_t(i)] == 0) continue;
      a.logits = TensorView::of(part.data(), DType::kF32, {w, x_.q_heads, places});
      logits_plain(a, on_host_.parts[size_t(i)], stream);
      for (int64_t r = 0; r < w * x_.q_heads; ++r)
        std::memcpy(
            all.data() + r * ordinals_ + first, part.data() + r * places, size_t(x_.parts[size_t(i)]) * 4);
      first += x_.parts[size_t(i)];
    }
    std::vector<float> out(size_t(heads * ordinals_));
    const TensorView in = TensorView::of(all.data(), DType::kF32, {w, x_.q_heads, ordinals_}),
                     to = TensorView::of(out.data(), DType::kF32, {heads, ordinals_});
    if (slow)
      ref::attn_scores(spec, in, last_, scale_, x_.kv_heads, to);
    else
      attn_scores(spec, in, last_, scale_, x_.kv_heads, to, stream);
    return out;
  }

 private:
  struct Tables {
    std::vector<int64_t> runs;
    int32_t counts = 0, tokens = 0;
    cuda::Buffer runs_on, start_on, offset_on, counts_on, tokens_on;
  };
  Shape x_;
  float scale_;
  int64_t ordinals_ = 0, zero_ = 0;
  cuda::Buffer arena_, q_on_, last_on_, out_;
  std::vector<char> host_arena_;
  std::vector<float> q_;
  std::vector<int64_t> last_;
  std::vector<Tables> tables_;
  AttentionView on_device_, on_host_;
  std::optional<cuda::Workspace> workspace_;
};

// Of the greatest score: probabilities differ by what a logit's error makes of them.
double difference(std::span<const float> got, std::span<const float> want) {
  double worst = 0, most = 1e-30;
  for (float x : want)
    if (std::isfinite(x)) most = std::max(most, double(std::abs(x)));
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i]) || !(std::abs(got[i]) < 1e30f)) {
      if (!(got[i] == want[i])) return 1e30;
      continue;
    }
    worst = std::max(worst, std::abs(double(got[i]) - double(want[i])) / most);
  }
  return worst;
}

// q in two BF16 pieces: 2^-17 of each of 128 products of up to 4 in size, scaled by 128^-1/2; their sum is
// 1.7e-4 at the very worst, and in probabilities as much again from the softmax's sum.
constexpr double kTolerance = 4e-5;

ScoreSpec spec_of(int bits, int64_t n) {
  ScoreSpec s;
  s.prob = bits % 2 == 0, s.full_denominator = bits / 2 % 2, s.per_kv_head = bits / 4 % 2;
  s.over_queries = Reduce(bits % 3), s.over_heads = Reduce(bits / 3 % 3);
  if (bits % 5) s.skip_first = int(n / 5), s.skip_last = int(n / 4);
  return s;
}

// The k best of both, where they differ: by scores nearer than the tolerance, or wrongly.
void compare_picks(
    std::span<const float> got, std::span<const float> want, int64_t k, int& ties, int& wrong) {
  std::vector<int32_t> a, c;
  top_k(got, k, a), top_k(want, k, c);
  float most = 0, cut = std::numeric_limits<float>::infinity();
  for (float x : want) most = std::max(most, std::abs(x));
  for (int32_t i : c) cut = std::min(cut, want[size_t(i)]);
  std::vector<int32_t> odd;
  std::set_symmetric_difference(a.begin(), a.end(), c.begin(), c.end(), std::back_inserter(odd));
  for (int32_t i : odd) ++(std::abs(want[size_t(i)] - cut) <= 2 * kTolerance * most ? ties : wrong);
}

void check_pool(Bench& b) {
  double worst = 0;
  for (int64_t n : {1, 2, 255, 256, 257, 5000}) {
    for (int width : {1, 3, 7, 63, 9999}) {
      std::vector<float> x(size_t(3 * n), 0), want(size_t(n), 0);
      for (size_t i = 0; i < x.size(); ++i) x[i] = random_float(uint64_t(n), i);
      cuda::Buffer in = upload(x), out = device_memory(3 * n * 4);
      cuda::max_pool({in.ptr<float>(), n, n, 3, width, out.ptr<float>(), n}, b.stream());
      b.stream().synchronize();
      const auto got = download<float>(out.data(), 3 * n);
      for (int64_t r = 0; r < 3; ++r) {
        max_pool(std::span(x).subspan(size_t(r * n), size_t(n)), width, want);
        if (!std::equal(want.begin(), want.end(), got.begin() + r * n)) worst = 1;
      }
    }
  }
  b.check("max_pool: 30 shapes of 3 rows", worst == 0, worst, true);
}

}  // namespace

void scores_checks(Bench& b) {
  const std::vector<Shape> shapes = {{{1}, 32},
                                     {{15}, 5, 7, 7},
                                     {{16}, 1, 9, 3, 64},
                                     {{17}, 33, 6, 2, 64, 32, 16, false},
                                     {{63, 0, 1}, 32, 8, 1},
                                     {{64, 64, 64, 64}, 17, 4, 4, 128, 64, 64},
                                     {{65}, 70, 4, 2, 128, 16, 16, false},
                                     {{255, 2}, 32, 9, 1},
                                     {{700, 31}, 32, 16, 2, 128, 32, 32},
                                     {{1500}, 64, 8, 2},
                                     {{1000}, 0, 8, 2},
                                     {{4500, 40}, 32, 12, 4, 64, 16, 16}};
  for (const Shape& shape : shapes) {
    Votes v(shape, 11, b);
    double worst = 0, twin = 0;
    bool same = true;
    int cases = 0;
    for (int bits = 0; bits<30; bits += v.ordinals()> 600 ? 7 : 1, ++cases) {
      const ScoreSpec spec = spec_of(bits, v.ordinals());
      const auto got = v.device_scores(spec, b);
      worst = std::max(worst, difference(got, v.host_scores(spec, true)));
      twin = std::max(twin, difference(got, v.host_scores(spec, false)));
      const auto again = v.device_scores(spec, b);
      same = same && std::memcmp(got.data(), again.data(), got.size() * 4) == 0;
    }
    b.check(
        format("scores: {} ordinals in {} parts, {} queries, {} / {} heads x {}, {} specs, of the CPU {:.1e}",
               v.ordinals(),
               shape.parts.size(),
               shape.queries,
               shape.q_heads,
               shape.kv_heads,
               shape.dim,
               cases,
               twin),
        worst <= kTolerance && twin <= kTolerance && same,
        worst,
        true);
  }
  check_pool(b);
}

void scores_cases(Bench& b) {
  ScoreSpec snap;  // SnapKV's
  snap.skip_first = 64, snap.skip_last = 512;
  struct Case {
    Shape shape;
    bool check;
  };
  for (const Case& c : {Case{{{32768}}, true},
                        Case{{{131072}}, false},
                        Case{{{131072}, 32, 64, 8}, false},
                        Case{{{8192}}, true},
                        Case{{{2048, 128}}, true}}) {
    Votes v(c.shape, 5, b);
    double error = 0;
    if (c.check) {
      const auto got = v.device_scores(snap, b), want = v.host_scores(snap, false);
      error = difference(got, want);
      int ties = 0, wrong = 0;
      for (int64_t k : {128, 1024, 2000}) compare_picks(got, want, std::min(k, v.ordinals()), ties, wrong);
      b.check(format("scores before timing, {} ordinals: picks differ in {} ties, {} wrong",
                     v.ordinals(),
                     ties,
                     wrong),
              error <= kTolerance && wrong == 0,
              error,
              true);
    }
    v.enqueue(snap, b);
    const Stats s = b.measure([&] { v.enqueue(snap, b); });
    const std::string name = format("{} queries, {} / {} heads x {}, {} tokens",
                                    c.shape.queries,
                                    c.shape.q_heads,
                                    c.shape.kv_heads,
                                    c.shape.dim,
                                    v.ordinals());
    b.report("window_scores", name, v.key_bytes(), error, s);
    b.report_flops("window_scores", name + ", products once", v.flops(), error, s);
    if (v.ordinals() != 131072) continue;
    cuda::Buffer pooled = device_memory(v.ordinals() * 4);
    b.report("max_pool", "131072, width 7", double(v.ordinals()) * 8, 0, b.measure([&] {
      cuda::max_pool({v.out(), v.ordinals(), v.ordinals(), 1, 7, pooled.ptr<float>(), v.ordinals()},
                     b.stream());
    }));
  }
}

}  // namespace se::kbench
