#include "kbench/prefill_step.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kbench/reference.h"
#include "kernels/attention/decode_cuda.h"

namespace se::kbench {
namespace {

constexpr int64_t kDim = 128;

TensorView on_device(void* p, DType d, std::initializer_list<int64_t> s) {
  return TensorView::of(p, d, s, DeviceKind::kCuda);
}
int64_t pick(uint64_t seed, int64_t below, int64_t i) {
  const double x = double(random_float(seed, uint64_t(i))) * 0.5 + 0.5;
  return std::min(below - 1, int64_t(x * double(below)));
}
std::vector<float> floats(int64_t n, float scale, uint64_t seed) {
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = scale * random_float(seed, i);
  return x;
}

// Channel 0 of the keys is 4 in the chosen blocks of 128 tokens of each KV head, -4 in the others: with q's
// of 8 their logits differ by 5.7.
void plant(const PrefillCase& c,
           const std::vector<int64_t>& runs,
           const cuda::Buffer& arena,
           int64_t page_bytes,
           Bench& b) {
  std::vector<float> value(size_t(arena.bytes() / page_bytes) * size_t(c.kv_heads), 0.f);
  for (size_t i = 0; i < runs.size(); ++i)
    for (int h = 0; h < c.kv_heads; ++h) {
      const int64_t block = int64_t(i) * c.unit / 128;
      const double x = double(random_float(c.seed + 20, uint64_t(block * c.kv_heads + h))) * 0.5 + 0.5;
      value[size_t(run_slot(runs[i]) / c.page / (page_bytes / 256)) * size_t(c.kv_heads) + size_t(h)] =
          x < c.planted ? 4.f : -4.f;
    }
  const cuda::Buffer on = upload(value);
  set_channel_0(
      arena.data(), int64_t(value.size()), c.page, 256, c.kv_heads, page_bytes, on.ptr<float>(), b.stream());
  b.stream().synchronize();
}

}  // namespace

PrefillStep::PrefillStep(const PrefillCase& c, Bench& b) : c_(c) {
  const int heads = c.per_head ? c.kv_heads : 1;
  const Planes planes(c.type, c.kv_heads, kDim, c.page);
  const int64_t page_bytes = page_bytes_ = planes.lay_out(nullptr, part_);
  int64_t pages = 0, cap = 1, next = 0;
  for (const PrefillRow& r : c.rows) pages += int64_t(r.runs.size()) * heads;
  arena_ = device_memory(std::max<int64_t>(pages, 1) * page_bytes);
  planes.lay_out(arena_.data(), part_);
  planes.fill(arena_, part_, c.seed, b);
  std::vector<int64_t> order(static_cast<size_t>(pages)), start, runs;
  for (int64_t i = 0; i < pages; ++i) order[size_t(i)] = i;
  for (int64_t i = pages - 1; i > 0; --i)
    std::swap(order[size_t(i)], order[size_t(pick(c.seed + 9, i + 1, 1000 + i))]);
  std::vector<int32_t> counts, from, ids, split, pos;
  std::vector<int64_t> first;
  int least_split = 1 << 30, most_split = 0;
  for (size_t r = 0; r < c.rows.size(); ++r) {
    const PrefillRow& row = c.rows[r];
    for (int h = 0; h < heads; ++h) {
      start.push_back(int64_t(runs.size())), counts.push_back(int32_t(row.runs.size()));
      first.push_back(row.gone);
      for (int t : row.runs) {
        const bool anywhere = t < c.page && c.type != cuda::DecodeType::kKivi4;  // runs begin anywhere
        const int64_t within = anywhere ? pick(c.seed + 9, c.page - t + 1, 77 + next) : 0;
        runs.push_back(se::run(order[size_t(next++)] * (page_bytes / 256) * c.page + within, t));
      }
    }
    cap = std::max(cap, int64_t(row.runs.size()));
    const int past = row.runs.empty() ? 0 : int(row.runs.size() - 1) * c.unit + row.runs.back();
    for (int t = 0; t < row.tokens; ++t) pos.push_back(row.gone + past + row.before + t);
    split.push_back(row.split), most_split = std::max(most_split, row.split);
    if (row.split > 0) least_split = std::min(least_split, row.split);
    from.push_back(q_start_.back() - row.before);
    q_start_.push_back(q_start_.back() + row.tokens);
    ids.push_back(int32_t(c.reversed ? c.rows.size() - 1 - r : r));
  }
  if (c.planted > 0) plant(c, runs, arena_, page_bytes, b);
  const int64_t n = int64_t(c.rows.size()), tokens = q_start_.back(), q_heads = int64_t(c.kv_heads) * c.group;
  places_ = cap * c.unit + tokens;
  const auto put = [&](const auto& host) {
    held_.push_back(upload(host));
    return held_.back().data();
  };
  runs.push_back(0);
  KvIndex& index = part_.index;
  index.runs = on_device(put(runs), DType::kI64, {int64_t(runs.size())});
  index.start = on_device(put(start), DType::kI64, {int64_t(start.size())});
  index.counts = on_device(put(counts), DType::kI32, {int64_t(counts.size())});
  index.first = on_device(put(first), DType::kI64, {int64_t(first.size())});
  index.unit = c.unit, index.page = c.page, index.row_heads = heads, index.cap = cap;
  rows_.q_start = on_device(put(q_start_), DType::kI32, {n + 1});
  rows_.kv_from = on_device(put(from), DType::kI32, {n}), rows_.rows = int(n);
  rows_.split = on_device(put(split), DType::kI32, {n}),
  rows_.pos = on_device(put(pos), DType::kI32, {tokens});
  args_.window = c.window;
  args_.rows = &rows_, args_.list.ids = on_device(put(ids), DType::kI32, {n});
  args_.list.cap = int(n);
  args_.list.n = on_device(put(std::vector<int32_t>{int32_t(n)}), DType::kI32, {1});
  std::vector<float> q = floats(tokens * q_heads * kDim, c.q_scale, c.seed + 1);
  for (size_t i = 0; c.planted > 0 && i < q.size(); i += size_t(kDim)) q[i] = 8;
  args_.q = on_device(put(q), DType::kF32, {tokens, q_heads, kDim});
  args_.scale = float(1 / std::sqrt(double(kDim)));
  const int64_t present = tokens * c.kv_heads * kDim;
  present_.k = on_device(put(floats(present, 1, c.seed + 2)), DType::kF32, {tokens, c.kv_heads, kDim});
  present_.v = on_device(put(floats(present, 1, c.seed + 3)), DType::kF32, {tokens, c.kv_heads, kDim});
  if (c.with_present) args_.present = &present_;
  const std::vector<float> poison(size_t(tokens * q_heads * kDim), std::numeric_limits<float>::quiet_NaN());
  args_.out = on_device(put(poison), DType::kF32, {tokens, q_heads, kDim});
  args_.lse = on_device(put(std::vector<float>(poison.begin(), poison.begin() + tokens * q_heads)),
                        DType::kF32,
                        {tokens, q_heads});
  plan = cuda::plan_prefill(cap, c.unit, int(tokens), most_split > 0 ? least_split : 0);
  workspace_.emplace(device_memory(
      std::max(cuda::prefill_workspace_bytes(plan, args_, part_),
               c.with_present && c.window == 0 ? cuda::sparse_prefill_workspace_bytes(args_, part_) : 0)));
  SE_CUDA(cudaDeviceSynchronize());
}

double PrefillStep::flops() const {
  double pairs = 0;
  for (const PrefillRow& r : c_.rows) {
    double past = 0;
    for (int t : r.runs) past += t;
    if (c_.window > 0)
      for (int t = 0; t < r.tokens; ++t) pairs += std::min<double>(c_.window, past + r.before + t + 1);
    else
      pairs += r.tokens * (past + (c_.with_present ? r.before + (r.tokens + 1) / 2.0 : 0));
  }
  return pairs * 4 * double(kDim) * c_.kv_heads * c_.group;
}

double PrefillStep::error(Bench& b, int most, bool by_terms) const {
  std::vector<int2> which;
  const int all = tokens(), step = std::max(1, all / std::max(1, most - 1));
  for (int t = 0; t < all; t = t < all - 1 ? std::min(all - 1, t + step) : all) {
    const auto row = std::upper_bound(q_start_.begin(), q_start_.end(), t) - q_start_.begin() - 1;
    which.push_back({int(row), t});
  }
  const int64_t n = int64_t(which.size()), q_heads = int64_t(c_.kv_heads) * c_.group;
  cuda::Buffer on = upload(which), scratch = device_memory(n * q_heads * places_ * 8),
               want_out = device_memory(n * q_heads * kDim * 8), want_lse = device_memory(n * q_heads * 8),
               size = device_memory(n * q_heads * kDim * 8);
  AttendArgs plain = args_;
  plain.window = 0;
  reference_prefill(cuda::decode_params(plain, part_),
                    c_.type,
                    {c_.window, part_.index.first.ptr<int64_t>(), rows_.pos.ptr<int32_t>()},
                    on.ptr<int2>(),
                    int(n),
                    places_,
                    scratch.ptr<double>(),
                    want_out.ptr<double>(),
                    want_lse.ptr<double>(),
                    size.ptr<double>(),
                    b.stream());
  b.stream().synchronize();
  const auto want = download<double>(want_out.data(), n * q_heads * kDim);
  return compare(which,
                 want,
                 download<double>(want_lse.data(), n * q_heads),
                 by_terms ? download<double>(size.data(), n * q_heads * kDim) : want);
}

double PrefillStep::compare(const std::vector<int2>& which,
                            const std::vector<double>& want,
                            const std::vector<double>& want_l,
                            const std::vector<double>& size) const {
  const auto got = out(), got_l = download<float>(args_.lse.data, args_.lse.numel());
  const int64_t q_heads = int64_t(c_.kv_heads) * c_.group;
  double worst = 0;
  for (size_t i = 0; i < want_l.size(); ++i) {
    const size_t at = size_t(which[i / size_t(q_heads)].y) * size_t(q_heads) + i % size_t(q_heads);
    double largest = 1e-30;
    for (size_t d = 0; d < size_t(kDim); ++d)
      largest = std::max(largest, std::abs(size[i * size_t(kDim) + d]));
    const bool empty = !(want_l[i] > -1e300);
    for (size_t d = 0; d < size_t(kDim); ++d) {
      const double miss = std::abs(double(got[at * size_t(kDim) + d]) - want[i * size_t(kDim) + d]);
      if (!(miss < 1e30)) return 1e30;
      worst = std::max(worst, empty ? miss : miss / largest);
    }
    const double l = double(got_l[at]);
    if (empty ? !(l < -1e300) : !(std::abs(l) < 1e30)) return 1e30;
    if (!empty) worst = std::max(worst, 10 * std::abs(l - want_l[i]) / std::max(1.0, std::abs(want_l[i])));
  }
  return worst;
}

}  // namespace se::kbench
