#include "kbench/attention_step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/half.h"
#include "kbench/reference.h"

namespace se::kbench {
namespace {

using cuda::DecodeType;

TensorView on_device(void* p, DType d, std::initializer_list<int64_t> s) {
  return TensorView::of(p, d, s, DeviceKind::kCuda);
}

struct Component {
  DType dtype;
  int per;       // tokens of an item
  int64_t size;  // bytes of an item of one head
  std::vector<int64_t> shape;
};

std::vector<Component> components(DecodeType type, int64_t d) {
  switch (type) {
    case DecodeType::kBF16:
      return {{DType::kBF16, 1, d * 2, {d}}, {DType::kBF16, 1, d * 2, {d}}};
    case DecodeType::kF16:
      return {{DType::kF16, 1, d * 2, {d}}, {DType::kF16, 1, d * 2, {d}}};
    case DecodeType::kKivi4: {
      const Component codes{DType::kU8, 32, 32 * d / 2, {32, d / 2}};
      const Component low{DType::kBF16, 32, d * 2, {d}}, step{DType::kF16, 32, d * 2, {d}};
      return {codes, low, step, codes, low, step};
    }
    default: {
      const DType t = type == DecodeType::kE4M3 ? DType::kF8E4M3 : DType::kF8E5M2;
      return {{t, 1, d, {d}}, {t, 1, d, {d}}, {DType::kF32, 1, 4, {1}}, {DType::kF32, 1, 4, {1}}};
    }
  }
}

}  // namespace

std::vector<int> tokens_in_runs(int tokens, int unit) {
  std::vector<int> runs;
  for (int t = 0; t < tokens; t += unit) runs.push_back(std::min(unit, tokens - t));
  return runs;
}

const char* name_of(DecodeType type) {
  constexpr const char* kNames[] = {"bf16", "f16", "fp8 e4m3", "fp8 e5m2", "kivi4"};
  return kNames[int(type)];
}

int64_t Step::pick(int64_t below, int64_t i) const {
  const double x = double(random_float(c_.seed + 9, uint64_t(i))) * 0.5 + 0.5;
  return std::min(below - 1, int64_t(x * double(below)));
}

int64_t Planes::lay_out(char* arena, AttentionPart& part) const {
  int64_t at = 0, i = 0;
  for (const Component& x : components(type_, dim_)) {
    const int64_t items = page_ / x.per;
    TensorView v =
        x.shape.size() == 1
            ? on_device(arena + at, x.dtype, {int64_t{1} << 38, items, heads_, x.shape[0]})
            : on_device(arena + at, x.dtype, {int64_t{1} << 36, items, heads_, x.shape[0], x.shape[1]});
    v.stride[0] = 256, v.stride[1] = x.size, v.stride[2] = items * x.size;
    part.planes[size_t(i++)] = v;
    at += items * x.size * heads_;
  }
  if (type_ == DecodeType::kKivi4) part.args = {4, 32};
  return (at + 255) / 256 * 256;
}

int64_t Planes::token_bytes() const {
  int64_t bytes = 0;
  for (const Component& x : components(type_, dim_)) bytes += x.size / x.per * heads_;
  return bytes;
}

// Random everywhere; then what is not a 16-bit float or a code is put right, page by page.
void Planes::fill(const cuda::Buffer& arena, const AttentionPart& part, uint64_t seed, Bench& b) const {
  if (type_ == DecodeType::kBF16 || type_ == DecodeType::kF16)
    return fill_random(arena.data(), arena.bytes() / 2, type_ == DecodeType::kBF16, 1, seed, b.stream());
  fill_bytes(arena.data(), arena.bytes(), type_ == DecodeType::kKivi4, seed, b.stream());
  const auto parts = components(type_, dim_);
  AttentionPart laid = part;
  const int64_t page_bytes = lay_out(arena.data(), laid), pages = arena.bytes() / page_bytes;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t n = page_ / parts[i].per * parts[i].size * heads_;
    const size_t pitch = size_t(page_bytes);
    cuda::Buffer values = device_memory(pages * n);
    if (parts[i].dtype == DType::kF32)
      fill_floats(values.data(), pages * n / 4, 0.001f, 0.3f, seed + i, b.stream());
    else if (parts[i].dtype == DType::kBF16 || parts[i].dtype == DType::kF16)
      fill_random(values.data(), pages * n / 2, parts[i].dtype == DType::kBF16, 0.2f, seed + i, b.stream());
    else
      continue;
    SE_CUDA(cudaMemcpy2DAsync(laid.planes[i].data,
                              pitch,
                              values.data(),
                              size_t(n),
                              size_t(n),
                              size_t(pages),
                              cudaMemcpyDeviceToDevice,
                              b.stream().get()));
    b.stream().synchronize();
  }
}

Step::Step(const Case& c, Bench& b)
    : c_(c), heads_(c.per_head ? c.kv_heads : 1), planes_(c.type, c.kv_heads, c.dim, c.page) {
  page_bytes_ = planes_.lay_out(nullptr, part_);
  int64_t pages = 0, cap = 1;
  std::vector<int32_t> counts, q_start{0}, from, split, ids;
  std::vector<int64_t> start, runs;
  for (const Row& r : c.rows) pages += int64_t(r.runs.size()) * heads_;
  std::vector<int64_t> order(static_cast<size_t>(pages));
  for (int64_t i = 0; i < pages; ++i) order[size_t(i)] = i;
  for (int64_t i = pages - 1; c.shuffle && i > 0; --i)
    std::swap(order[size_t(i)], order[size_t(pick(i + 1, 1000 + i))]);
  int64_t next = 0;
  int least = 1 << 30, token = 0;
  for (size_t r = 0; r < c.rows.size(); ++r) {
    const Row& row = c.rows[r];
    for (int h = 0; h < heads_; ++h) {
      start.push_back(int64_t(runs.size())), counts.push_back(int32_t(row.runs.size()));
      for (int t : row.runs) {
        const bool anywhere = t < c.page && c.type != DecodeType::kKivi4;  // runs begin anywhere
        const int64_t within = anywhere ? pick(c.page - t + 1, 77 + next) : 0;
        runs.push_back(se::run(order[size_t(next++)] * (page_bytes_ / 256) * c.page + within, t));
      }
    }
    cap = std::max(cap, int64_t(row.runs.size()));
    // Several present tokens: the row sees its neighbours before it.
    from.push_back(std::max(0, token - (row.present - 1)));
    q_start.push_back(++token), split.push_back(row.split);
    ids.push_back(int32_t(c.rows.size() - 1 - r));  // a list in another order than the rows
    least = std::min(least, row.split);
  }
  const int64_t rows = int64_t(c.rows.size()), q_heads = int64_t(c.kv_heads) * c.group;
  places_ = cap * c.unit + rows;
  arena_ = device_memory(std::max<int64_t>(pages, 1) * page_bytes_);
  planes_.lay_out(arena_.data(), part_);
  planes_.fill(arena_, part_, c.seed, b);
  std::vector<float> q(size_t(rows * q_heads * c.dim)), nk(size_t(rows * c.kv_heads * c.dim)), nv = nk;
  for (size_t i = 0; i < q.size(); ++i) q[i] = 2 * random_float(c.seed + 1, i);
  for (size_t i = 0; i < nk.size(); ++i)
    nk[i] = random_float(c.seed + 2, i), nv[i] = random_float(c.seed + 3, i);
  const auto put = [&](const auto& host) {
    held_.push_back(upload(host));
    return held_.back().data();
  };
  const std::vector<int64_t> offset(start.size(), 0);
  runs.push_back(0);
  KvIndex& index = part_.index;
  index.runs = on_device(put(runs), DType::kI64, {int64_t(runs.size())});
  index.start = on_device(put(start), DType::kI64, {int64_t(start.size())});
  index.offset = on_device(put(offset), DType::kI64, {int64_t(start.size())});
  index.counts = on_device(put(counts), DType::kI32, {int64_t(counts.size())});
  index.unit = c.unit, index.page = c.page, index.row_heads = heads_, index.cap = cap;
  rows_.q_start = on_device(put(q_start), DType::kI32, {rows + 1});
  rows_.kv_from = on_device(put(from), DType::kI32, {rows});
  rows_.split = on_device(put(split), DType::kI32, {rows}), rows_.rows = rows_.decode_rows = int(rows);
  args_.rows = &rows_, args_.list.ids = on_device(put(ids), DType::kI32, {rows});
  args_.list.cap = int(rows);
  args_.list.n = on_device(put(std::vector<int32_t>{int32_t(rows)}), DType::kI32, {1});
  args_.q = on_device(put(q), DType::kF32, {rows, q_heads, c.dim});
  args_.scale = float(1 / std::sqrt(double(c.dim)));
  present_.k = on_device(put(nk), DType::kF32, {rows, c.kv_heads, c.dim});
  present_.v = on_device(put(nv), DType::kF32, {rows, c.kv_heads, c.dim});
  if (c.with_present) args_.present = &present_;
  const std::vector<float> poison(q.size(), std::numeric_limits<float>::quiet_NaN());
  args_.out = on_device(put(poison), DType::kF32, {rows, q_heads, c.dim});
  args_.lse = on_device(
      put(std::vector<float>(poison.begin(), poison.begin() + rows * q_heads)), DType::kF32, {rows, q_heads});
  plan_ = cuda::plan_decode(
      c.type, c.dim, cap, c.unit, least, int(rows) * c.kv_heads * cuda::decode_slices(c.group));
  SE_CUDA(cudaDeviceSynchronize());
}

void LateWriter::start(const StepRows& rows,
                       const AttendArgs& args,
                       const AttentionPart& part,
                       const cuda::Buffer& arena,
                       cuda::DecodeAhead ahead,
                       Bench& b) {
  std::vector<TensorView> late{args.q, args.present->k};
  if (args.present->v.data != args.present->k.data) late.push_back(args.present->v);
  const KvIndex& x = part.index;
  if (ahead != cuda::DecodeAhead::kPast) {
    late.push_back(x.runs);
    late.push_back(on_device(arena.data(), DType::kU8, {arena.bytes()}));
  }
  if (ahead == cuda::DecodeAhead::kNothing)
    for (const TensorView* t :
         {&x.start, &x.counts, &rows.q_start, &rows.kv_from, &rows.split, &args.list.ids, &args.list.n})
      late.push_back(*t);
  std::vector<LateWrite> writes;
  for (const TensorView& t : late) {
    const int64_t bytes = bytes_of(t.dtype, t.numel());
    right_.push_back(device_memory(bytes));
    SE_CUDA(cudaMemcpyAsync(
        right_.back().data(), t.data, size_t(bytes), cudaMemcpyDeviceToDevice, b.stream().get()));
    // Wrong until then, but such that a kernel that reads it ends.
    SE_CUDA(cudaMemsetAsync(t.data, t.data == rows.split.data ? 1 : 0, size_t(bytes), b.stream().get()));
    writes.push_back({t.data, right_.back().data(), bytes});
  }
  SE_CUDA(cudaMemsetAsync(args.out.data, 0xff, size_t(args.out.numel() * 4), b.stream().get()));
  b.stream().synchronize();
  write_late(writes, b.stream());
}

void Step::enqueue_after_late_writer(Bench& b) {
  LateWriter late;
  late.start(rows_, args_, part_, arena_, ahead, b);
  enqueue(b);
  b.stream().synchronize();
}

double Step::bytes() const {
  double tokens = 0, runs = 0;
  for (const Row& r : c_.rows) {
    for (int t : r.runs) tokens += t;
    runs += double(r.runs.size());
  }
  return tokens * double(planes_.token_bytes()) + runs * 8;
}

double Step::error(Bench& b) const {
  const int64_t rows = int64_t(c_.rows.size()), q_heads = int64_t(c_.kv_heads) * c_.group;
  const cuda::DecodeParams p = cuda::decode_params(args_, part_);
  cuda::Buffer scratch = device_memory(rows * q_heads * places_ * 8);
  cuda::Buffer want_out = device_memory(rows * q_heads * c_.dim * 8),
               want_lse = device_memory(rows * q_heads * 8);
  reference_attention(p,
                      c_.type,
                      c_.dim,
                      int(rows),
                      places_,
                      scratch.ptr<double>(),
                      want_out.ptr<double>(),
                      want_lse.ptr<double>(),
                      b.stream());
  b.stream().synchronize();
  const auto want = download<double>(want_out.data(), rows * q_heads * c_.dim);
  const auto want_l = download<double>(want_lse.data(), rows * q_heads);
  const auto got = out(), got_l = download<float>(args_.lse.data, rows * q_heads);
  double worst = 0;
  for (size_t h = 0; h < want_l.size(); ++h) {
    double most = 1e-30;
    const size_t dim = size_t(c_.dim);
    for (size_t d = 0; d < dim; ++d) most = std::max(most, std::abs(want[h * dim + d]));
    for (size_t d = 0; d < dim; ++d) {
      const double miss = std::abs(double(got[h * dim + d]) - want[h * dim + d]);
      if (!(miss < 1e30)) return 1e30;
      worst = std::max(worst, want_l[h] > -1e300 ? miss / most : miss);
    }
    const double l = double(got_l[h]);
    if (want_l[h] > -1e300 ? !(std::abs(l) < 1e30) : !(l < -1e300)) return 1e30;
    if (want_l[h] > -1e300)
      worst = std::max(worst, std::abs(l - want_l[h]) / std::max(1.0, std::abs(want_l[h])));
  }
  return worst;
}

}  // namespace se::kbench
