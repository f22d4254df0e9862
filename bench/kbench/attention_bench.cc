#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/fmt.h"
#include "base/half.h"
#include "kbench/kbench.h"
#include "kernels/attention/decode_cuda.h"

namespace se::kbench {
namespace {

struct Row {
  std::vector<int> runs;  // tokens of each
  int split = 2048;
  int present = 1;  // tokens, the row's own included
};
struct Case {
  std::vector<Row> rows;
  int kv_heads = 4, group = 8, dim = 128, page = 16, unit = 16;
  bool bf16 = true, with_present = true, shuffle = true, per_head = false;
  uint64_t seed = 1;
};

// A step on the device as the store lays it out: pages of K then V, [head][item][dim], a page id every 256
// bytes.
class Step {
 public:
  Step(const Case& c, Bench& b) : c_(c), heads_(c.per_head ? c.kv_heads : 1) {
    const int64_t plane = int64_t(c.kv_heads) * c.page * c.dim * 2;
    page_bytes_ = 2 * plane;
    int64_t pages = 0, cap = 1;
    std::vector<int32_t> counts, tokens, q_start{0}, from, split, ids;
    std::vector<int64_t> start, runs;
    for (const Row& r : c.rows) pages += int64_t(r.runs.size()) * heads_;
    order_.resize(size_t(pages));
    for (int64_t i = 0; i < pages; ++i) order_[size_t(i)] = i;
    for (int64_t i = pages - 1; c.shuffle && i > 0; --i)
      std::swap(order_[size_t(i)], order_[size_t(pick(i + 1, 1000 + i))]);
    int64_t next = 0;
    int least = 1 << 30, token = 0;
    for (size_t r = 0; r < c.rows.size(); ++r) {
      const Row& row = c.rows[r];
      for (int h = 0; h < heads_; ++h) {
        start.push_back(int64_t(runs.size())), counts.push_back(int32_t(row.runs.size()));
        for (int t : row.runs) {
          const int64_t within = t < c.page ? pick(c.page - t + 1, 77 + next) : 0;  // runs begin anywhere
          const int64_t id = order_[size_t(next++)] * (page_bytes_ / 256);
          runs.push_back(se::run(id * c.page + within, t));
        }
      }
      cap = std::max(cap, int64_t(row.runs.size()));
      from.push_back(token), q_start.push_back(token + 1), split.push_back(row.split);
      ids.push_back(int32_t(c.rows.size() - 1 - r));  // a list in another order than the rows
      q_start.back() = token + 1, token += 1, least = std::min(least, row.split);
    }
    // Several present tokens: the row sees its neighbours before it.
    for (size_t r = 0; r < c.rows.size(); ++r) from[r] = std::max(0, from[r] - (c.rows[r].present - 1));
    runs_ = runs, start_ = start, from_ = from;
    const int64_t rows = int64_t(c.rows.size()), q_heads = int64_t(c.kv_heads) * c.group;
    arena_ = device_memory(std::max<int64_t>(pages, 1) * page_bytes_);
    fill_random(arena_.data(), arena_.bytes() / 2, c.bf16, 1, c.seed, b.stream());
    q_.resize(size_t(rows * q_heads * c.dim)), nk_.resize(size_t(rows * c.kv_heads * c.dim)), nv_ = nk_;
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = 2 * random_float(c.seed + 1, i);
    for (size_t i = 0; i < nk_.size(); ++i)
      nk_[i] = random_float(c.seed + 2, i), nv_[i] = random_float(c.seed + 3, i);
    const auto put = [&](auto& host) {
      held_.push_back(upload(host));
      return held_.back().data();
    };
    const auto on = [](void* p, DType d, std::initializer_list<int64_t> s) {
      return TensorView::of(p, d, s, DeviceKind::kCuda);
    };
    std::vector<int64_t> offset(start.size(), 0);
    runs.push_back(0);
    part_.index.runs = on(put(runs), DType::kI64, {int64_t(runs.size())});
    part_.index.start = on(put(start), DType::kI64, {int64_t(start.size())});
    part_.index.offset = on(put(offset), DType::kI64, {int64_t(start.size())});
    part_.index.counts = on(put(counts), DType::kI32, {int64_t(counts.size())});
    part_.index.unit = c.unit, part_.index.page = c.page, part_.index.row_heads = heads_,
    part_.index.cap = cap;
    for (int p = 0; p < 2; ++p) {
      TensorView v = on(arena_.data() + p * plane,
                        c.bf16 ? DType::kBF16 : DType::kF16,
                        {int64_t{1} << 38, c.page, c.kv_heads, c.dim});
      v.stride[0] = 256, v.stride[1] = c.dim * 2, v.stride[2] = int64_t(c.page) * c.dim * 2, v.stride[3] = 2;
      part_.planes[size_t(p)] = v;
    }
    rows_.q_start = on(put(q_start), DType::kI32, {rows + 1}),
    rows_.kv_from = on(put(from), DType::kI32, {rows});
    rows_.split = on(put(split), DType::kI32, {rows}), rows_.rows = rows_.decode_rows = int(rows);
    args_.rows = &rows_, args_.list.ids = on(put(ids), DType::kI32, {rows}), args_.list.cap = int(rows);
    std::vector<int32_t> n{int32_t(rows)};
    args_.list.n = on(put(n), DType::kI32, {1});
    args_.q = on(put(q_), DType::kF32, {rows, q_heads, c.dim}),
    args_.scale = float(1 / std::sqrt(double(c.dim)));
    present_.k = on(put(nk_), DType::kF32, {rows, c.kv_heads, c.dim});
    present_.v = on(put(nv_), DType::kF32, {rows, c.kv_heads, c.dim});
    if (c.with_present) args_.present = &present_;
    std::vector<float> poison(q_.size(), std::numeric_limits<float>::quiet_NaN());
    args_.out = on(put(poison), DType::kF32, {rows, q_heads, c.dim});
    args_.lse = on(put(poison), DType::kF32, {rows, q_heads});
    plan_ = cuda::plan_decode(part_.planes[0].dtype, c.dim, cap, c.unit, least);
    auto memory =
        cuda::Buffer::allocate(cuda::decode_workspace_bytes(plan_, int(rows), c.kv_heads, c.group, c.dim));
    SE_CHECK(memory.ok(), "{}", memory.status().message());
    workspace_.emplace(memory.take());
    SE_CUDA(cudaDeviceSynchronize());
  }

  void enqueue(Bench& b) { cuda::attend_decode(args_, part_, plan_, *workspace_, b.stream()); }
  cuda::DecodePlan& plan() { return plan_; }
  std::vector<float> out() const { return download<float>(args_.out.data, args_.out.numel()); }

  double bytes() const {  // K, V and the run table, each read once
    double tokens = 0, runs = 0;
    for (const Row& r : c_.rows) {
      for (int t : r.runs) tokens += t;
      runs += double(r.runs.size());
    }
    return tokens * c_.kv_heads * c_.dim * 4 + runs * 8;
  }

  // The greatest of |out - ref| / ||ref||_inf over the query heads of `head` of `row`; lse too.
  double error(size_t row, int head) const {
    std::vector<float> k, v;
    const int64_t r = int64_t(row) * heads_ + (heads_ > 1 ? head : 0);
    const int64_t head_bytes = int64_t(c_.page) * c_.dim * 2, plane = head_bytes * c_.kv_heads;
    for (size_t e = 0; e < c_.rows[row].runs.size(); ++e) {
      const int64_t slot = run_slot(runs_[size_t(start_[size_t(r)]) + e]), n = c_.rows[row].runs[e];
      const char* at = arena_.data() + slot / c_.page * 256 + head * head_bytes + slot % c_.page * c_.dim * 2;
      for (int p = 0; p < 2; ++p)
        for (uint16_t x : download<uint16_t>(at + p * plane, n * c_.dim))
          (p ? v : k).push_back(c_.bf16 ? bf16_to_f32(x) : f16_to_f32(x));
    }
    for (size_t j = size_t(from_[row]); c_.with_present && j <= row; ++j)
      for (int d = 0; d < c_.dim; ++d) {
        k.push_back(nk_[(j * size_t(c_.kv_heads) + size_t(head)) * size_t(c_.dim) + size_t(d)]);
        v.push_back(nv_[(j * size_t(c_.kv_heads) + size_t(head)) * size_t(c_.dim) + size_t(d)]);
      }
    const size_t dim = size_t(c_.dim), n = k.size() / dim, q_heads = size_t(c_.kv_heads * c_.group);
    const auto out = download<float>(args_.out.data, args_.out.numel());
    const auto lse = download<float>(args_.lse.data, args_.lse.numel());
    double worst = 0;
    for (int a = 0; a < c_.group; ++a) {
      const size_t h = row * q_heads + size_t(head * c_.group + a);
      std::vector<double> s(n), want(dim, 0.0);
      double top = -1e300, total = 0, most = 1e-30;
      for (size_t j = 0; j < n; ++j) {
        s[j] = 0;
        for (size_t d = 0; d < dim; ++d) s[j] += double(q_[h * dim + d]) * double(k[j * dim + d]);
        s[j] *= double(args_.scale), top = std::max(top, s[j]);
      }
      for (size_t j = 0; j < n; ++j) {
        const double w = std::exp(s[j] - top);
        total += w;
        for (size_t d = 0; d < dim; ++d) want[d] += w * double(v[j * dim + d]);
      }
      for (double& x : want) x = n ? x / total : 0, most = std::max(most, std::abs(x));
      for (size_t d = 0; d < dim; ++d) {
        const double miss = std::abs(double(out[h * dim + d]) - want[d]);
        worst = std::max(worst, n ? miss / most : miss);
        if (std::isnan(out[h * dim + d])) return 1e30;
      }
      const double l = double(lse[h]);
      worst = std::max(worst,
                       n ? std::abs(l - (top + std::log(total))) / std::max(1.0, std::abs(l))
                         : (std::isinf(l) && l < 0 ? 0.0 : 1e30));
      if (std::isnan(l)) return 1e30;
    }
    return worst;
  }

 private:
  int64_t pick(int64_t below, int64_t i) const {
    return std::min(below - 1,
                    int64_t((double(random_float(c_.seed + 9, uint64_t(i))) * 0.5 + 0.5) * double(below)));
  }
  Case c_;
  int heads_;
  int64_t page_bytes_ = 0;
  std::vector<int64_t> order_, runs_, start_;
  std::vector<int32_t> from_;
  std::vector<float> q_, nk_, nv_;
  cuda::Buffer arena_;
  std::vector<cuda::Buffer> held_;
  StepRows rows_;
  Present present_;
  AttendArgs args_;
  AttentionPart part_;
  cuda::DecodePlan plan_;
  std::optional<cuda::Workspace> workspace_;
};

std::vector<int> tokens_in_runs(int tokens, int unit) {
  std::vector<int> runs;
  for (int t = 0; t < tokens; t += unit) runs.push_back(std::min(unit, tokens - t));
  return runs;
}

// q and the weights keep 16 bits; a term's rounding is 2^-17 of it, sums of up to 2^17 terms in f32 add
// theirs.
constexpr double kTolerance = 1e-4;

void check_case(Bench& b, const std::string& what, const Case& c) {
  Step step(c, b);
  step.enqueue(b);
  b.stream().synchronize();
  double worst = 0;
  for (size_t r = 0; r < c.rows.size(); ++r)
    for (int h = 0; h < c.kv_heads; ++h) worst = std::max(worst, step.error(r, h));
  b.check("attention " + what, worst <= kTolerance, worst, true);
}

// A row alone and the same row among others, on another grid: the same bits.
void check_batch_mates(Bench& b) {
  Case alone;
  alone.rows = {{tokens_in_runs(1000, 16), 128}};
  alone.shuffle = false;
  Case among = alone;  // the first row keeps its pages and its q: both are drawn by position
  among.rows.push_back({tokens_in_runs(3000, 16), 256});
  among.rows.push_back({tokens_in_runs(5, 16), 128});
  Step one(alone, b), many(among, b);
  many.plan().grid = 7;
  one.enqueue(b), many.enqueue(b);
  b.stream().synchronize();
  const auto x = one.out(), y = many.out();
  b.check("attention: no batch mate and no grid shows", std::equal(x.begin(), x.end(), y.begin()), 0, true);
}

void time_case(Bench& b, const std::string& shape, const Case& c) {
  Step step(c, b);
  step.enqueue(b);
  b.stream().synchronize();
  double worst = 0;
  for (size_t r : {size_t{0}, c.rows.size() - 1})
    worst = std::max(worst, step.error(r, int(r % size_t(c.kv_heads))));
  b.check("attention " + shape, worst <= kTolerance, worst);
  b.report("attend_decode", shape, step.bytes(), worst, b.measure([&] { step.enqueue(b); }));
}

}  // namespace

void attention_checks(Bench& b) {
  for (bool bf16 : {true, false}) {
    for (int dim : {128, 64}) {
      Case c;
      c.bf16 = bf16, c.dim = dim;
      for (int tokens : {0, 1, 15, 16, 17, 255, 256, 257, 1000})
        c.rows.push_back({tokens_in_runs(tokens, 16), 256});
      check_case(b, format("odd lengths, {} x {}", bf16 ? "bf16" : "f16", dim), c);
    }
  }
  Case c;
  c.rows = {{tokens_in_runs(700, 1), 64}, {tokens_in_runs(33, 1), 48}};
  c.unit = 1;
  check_case(b, "single tokens, splits of 64 and 48", c);
  c.rows = {{tokens_in_runs(2000, 64), 512}, {{64, 3, 64, 17, 1, 64}, 128}};
  c.unit = c.page = 64;
  check_case(b, "pages of 64, partial runs in the middle", c);
  c.rows = {{tokens_in_runs(500, 16), 96}, {tokens_in_runs(20, 16), 512, 2}, {{16, 0, 5}, 16, 3}};
  c.unit = c.page = 16, c.per_head = true;
  check_case(b, "a table per KV head, several present tokens, an empty run", c);
  c.per_head = false, c.with_present = false, c.rows.push_back({{}, 512});
  check_case(b, "no present, an empty row", c);
  c.kv_heads = 3, c.group = 5;
  check_case(b, "3 KV heads, groups of 5", c);
  c.kv_heads = 2, c.group = 12, c.with_present = true;
  check_case(b, "2 KV heads, groups of 12", c);
  c.kv_heads = 1, c.group = 1;
  check_case(b, "one head", c);
  check_batch_mates(b);
}

void attention_cases(Bench& b) {
  for (int batch : {1, 8}) {
    for (int split : {1024, 2048, 3984, 4096}) {
      Case c;
      for (int r = 0; r < batch; ++r) c.rows.push_back({tokens_in_runs(131072, 16), split});
      time_case(b, format("bf16 4x8x128, 131072 tokens, batch {}, page 16, split {}", batch, split), c);
    }
  }
  for (int split : {512, 1024, 2048}) {
    Case c;
    for (int r = 0; r < 64; ++r) c.rows.push_back({tokens_in_runs(2048, 16), split});
    time_case(b, format("bf16 4x8x128, 2048 tokens, batch 64, page 16, split {}", split), c);
  }
  for (int batch : {1, 3, 8}) {
    for (int split : {64, 128, 256}) {
      Case c;
      for (int r = 0; r < batch; ++r) c.rows.push_back({tokens_in_runs(2048, 16), split});
      time_case(b, format("bf16 4x8x128, 2048 tokens, batch {}, page 16, split {}", batch, split), c);
    }
  }
}

}  // namespace se::kbench
