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

PrefillStep::PrefillStep(const PrefillCase& c, Bench& b) : grid(cuda::prefill_grid()), c_(c) {
  const int heads = c.per_head ? c.kv_heads : 1;
  const int64_t plane = c.page * kDim * 2 * c.kv_heads, page_bytes = 2 * plane;
  int64_t pages = 0, cap = 1, next = 0;
  for (const PrefillRow& r : c.rows) pages += int64_t(r.runs.size()) * heads;
  arena_ = device_memory(std::max<int64_t>(pages, 1) * page_bytes);
  fill_random(arena_.data(), arena_.bytes() / 2, true, 1, c.seed, b.stream());
  for (int i = 0; i < 2; ++i) {
    TensorView v =
        on_device(arena_.data() + i * plane, DType::kBF16, {int64_t{1} << 38, c.page, c.kv_heads, kDim});
    v.stride[0] = 256, v.stride[1] = kDim * 2, v.stride[2] = c.page * kDim * 2;
    part_.planes[size_t(i)] = v;
  }
  std::vector<int64_t> order(static_cast<size_t>(pages)), start, runs;
  for (int64_t i = 0; i < pages; ++i) order[size_t(i)] = i;
  for (int64_t i = pages - 1; i > 0; --i)
    std::swap(order[size_t(i)], order[size_t(pick(c.seed + 9, i + 1, 1000 + i))]);
  std::vector<int32_t> counts, from, ids;
  for (size_t r = 0; r < c.rows.size(); ++r) {
    const PrefillRow& row = c.rows[r];
    for (int h = 0; h < heads; ++h) {
      start.push_back(int64_t(runs.size())), counts.push_back(int32_t(row.runs.size()));
      for (int t : row.runs) {
        const int64_t within = t < c.page ? pick(c.seed + 9, c.page - t + 1, 77 + next) : 0;
        runs.push_back(se::run(order[size_t(next++)] * (page_bytes / 256) * c.page + within, t));
      }
    }
    cap = std::max(cap, int64_t(row.runs.size()));
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
  index.unit = c.unit, index.page = c.page, index.row_heads = heads, index.cap = cap;
  rows_.q_start = on_device(put(q_start_), DType::kI32, {n + 1});
  rows_.kv_from = on_device(put(from), DType::kI32, {n}), rows_.rows = int(n);
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
  workspace_.emplace(device_memory(c.with_present ? cuda::sparse_prefill_workspace_bytes(args_, part_)
                                                  : cuda::prefill_workspace_bytes(int(tokens), c.kv_heads)));
  SE_CUDA(cudaDeviceSynchronize());
}

double PrefillStep::flops() const {
  double pairs = 0;
  for (const PrefillRow& r : c_.rows) {
    double past = 0;
    for (int t : r.runs) past += t;
    pairs += r.tokens * (past + (c_.with_present ? r.before + (r.tokens + 1) / 2.0 : 0));
  }
  return pairs * 4 * double(kDim) * c_.kv_heads * c_.group;
}

double PrefillStep::error(Bench& b, int most) const {
  std::vector<int2> which;
  const int all = tokens(), step = std::max(1, all / std::max(1, most - 1));
  for (int t = 0; t < all; t = t < all - 1 ? std::min(all - 1, t + step) : all) {
    const auto row = std::upper_bound(q_start_.begin(), q_start_.end(), t) - q_start_.begin() - 1;
    which.push_back({int(row), t});
  }
  const int64_t n = int64_t(which.size()), q_heads = int64_t(c_.kv_heads) * c_.group;
  cuda::Buffer on = upload(which), scratch = device_memory(n * q_heads * places_ * 8),
               want_out = device_memory(n * q_heads * kDim * 8), want_lse = device_memory(n * q_heads * 8);
  reference_prefill(cuda::decode_params(args_, part_),
                    on.ptr<int2>(),
                    int(n),
                    places_,
                    scratch.ptr<double>(),
                    want_out.ptr<double>(),
                    want_lse.ptr<double>(),
                    b.stream());
  b.stream().synchronize();
  return compare(which,
                 download<double>(want_out.data(), n * q_heads * kDim),
                 download<double>(want_lse.data(), n * q_heads));
}

double PrefillStep::compare(const std::vector<int2>& which,
                            const std::vector<double>& want,
                            const std::vector<double>& want_l) const {
  const auto got = out(), got_l = download<float>(args_.lse.data, args_.lse.numel());
  const int64_t q_heads = int64_t(c_.kv_heads) * c_.group;
  double worst = 0;
  for (size_t i = 0; i < want_l.size(); ++i) {
    const size_t at = size_t(which[i / size_t(q_heads)].y) * size_t(q_heads) + i % size_t(q_heads);
    double largest = 1e-30;
    for (size_t d = 0; d < size_t(kDim); ++d)
      largest = std::max(largest, std::abs(want[i * size_t(kDim) + d]));
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
