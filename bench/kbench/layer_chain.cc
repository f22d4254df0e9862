#include "kbench/layer_chain.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/attention/decode_cuda.h"
#include "kernels/linear/skinny_cuda.h"
#include "kernels/rmsnorm/rmsnorm_cuda.h"
#include "kernels/rope/rope_cuda.h"
#include "kernels/sample/argmax_cuda.h"
#include "kernels/topk/topk_cuda.h"
#include "sparse/read/quest/quest_cuda.h"

namespace se::kbench {
namespace {

constexpr int kPage = 16, kReady = 1 << 14;
constexpr float kEps = 1e-6f;

}  // namespace

const char* name_of(ChainOp op) {
  constexpr const char* kNames[] = {"norm",
                                    "qkv",
                                    "rope + write",
                                    "quest scores",
                                    "top-k",
                                    "attention",
                                    "o",
                                    "route",
                                    "experts",
                                    "head + argmax"};
  return kNames[op];
}

ChainWeights::ChainWeights(const ChainModel& m, Bench& b) : m_(m) {
  const int64_t h = m.hidden, qkv = int64_t(m.q_heads + 2 * m.kv_heads) * m.dim,
                out = int64_t(m.q_heads) * m.dim;
  const int64_t bytes = qkv * h + h * out + int64_t(m.experts) * 3 * m.inner * h;
  bytes_ = device_memory(bytes * m.layers), scales_ = device_memory(bytes * m.layers / 128 / 128 * 4);
  gates_ = device_memory(int64_t(m.layers) * m.experts * h * 2), head_ = device_memory(m.vocab * h * 2);
  norms_ = device_memory(h * 4);
  fill_bytes(bytes_.data(), bytes_.bytes(), false, 21, b.stream());
  fill_floats(scales_.data(), scales_.bytes() / 4, 0.003f, 0.02f, 22, b.stream());
  fill_random(gates_.data(), gates_.bytes() / 2, true, 0.05f, 23, b.stream());
  fill_random(head_.data(), head_.bytes() / 2, true, 0.05f, 24, b.stream());
  fill_floats(norms_.data(), h, 0.5f, 1.5f, 25, b.stream());
  b.stream().synchronize();
}

ChainWeights::Layer ChainWeights::layer(int i) const {
  const int64_t h = m_.hidden, qkv = int64_t(m_.q_heads + 2 * m_.kv_heads) * m_.dim * h;
  const int64_t out = int64_t(m_.q_heads) * m_.dim * h, up = int64_t(m_.experts) * 2 * m_.inner * h;
  const int64_t down = up / 2, all = qkv + out + up + down, begin = all * i;
  const uint8_t* w = bytes_.ptr<uint8_t>() + begin;
  const float* s = scales_.ptr<float>() + begin / 16384;
  return {w,
          w + qkv,
          w + qkv + out,
          w + qkv + out + up,
          s,
          s + qkv / 16384,
          s + (qkv + out) / 16384,
          s + (qkv + out + up) / 16384,
          gates_.data() + int64_t(i) * m_.experts * h * 2};
}

Chain::Chain(const ChainCase& c, const ChainWeights& w, Bench& b) : c_(c), w_(w) {
  const ChainModel& m = w.model();
  const int64_t rows = c.rows, h = m.hidden, q = int64_t(m.q_heads) * m.dim, kv = int64_t(m.kv_heads) * m.dim;
  slice_ = kPage * kv * 4 + kv * 4;  // K, V, then lo and hi of Quest
  pages_ = c.tokens / kPage;
  const int64_t all_pages = rows * (pages_ + 1);  // one for the new token
  arena_ = device_memory(all_pages * slice_ * m.layers);
  fill_random(arena_.data(), arena_.bytes() / 2, true, 1, 31, b.stream());
  std::vector<float> x(size_t(rows * h));
  for (size_t i = 0; i < x.size(); ++i) x[i] = 2 * random_float(32, i);
  first_x_ = upload(x), x_ = upload(x);
  h16_ = device_memory(rows * h * 2), qkv_ = device_memory(rows * (q + 2 * kv) * 4),
  out_ = device_memory(rows * q * 4);
  out16_ = device_memory(rows * q * 2), lse_ = device_memory(rows * m.q_heads * 4);
  logits_ = device_memory(rows * m.vocab * 4), head_x_ = device_memory(rows * h * 2);

  // Pages in random order; a page id counts 256-byte steps.
  std::vector<int64_t> order(static_cast<size_t>(all_pages)), runs, starts, chosen_starts, slots, offsets;
  for (size_t i = 0; i < order.size(); ++i) order[i] = int64_t(i);
  for (size_t i = order.size() - 1; i > 0; --i)
    std::swap(order[i],
              order[std::min(i, size_t((double(random_float(33, i)) * 0.5 + 0.5) * double(i + 1)))]);
  const int64_t page_step = (c.layer_major ? slice_ : slice_ * m.layers) / 256 * kPage;
  std::vector<int32_t> counts, ids, q_start{0}, from, split, pos, units;
  for (int64_t r = 0; r < rows; ++r) {
    starts.push_back(int64_t(runs.size())), chosen_starts.push_back(r * std::max(c.chosen, 1));
    for (int64_t i = 0; i < pages_; ++i)
      runs.push_back(order[size_t(r * (pages_ + 1) + i)] * page_step << 16 | kPage);
    slots.push_back(order[size_t(r * (pages_ + 1) + pages_)] * page_step);
    counts.push_back(int32_t(c.chosen ? c.chosen : pages_)), units.push_back(int32_t(pages_));
    ids.push_back(int32_t(r)), q_start.push_back(int32_t(r + 1)), from.push_back(int32_t(r));
    split.push_back(c.split), pos.push_back(int32_t(c.tokens));
  }
  for (int i = 0; i < m.layers; ++i)
    for (int64_t r = 0; r < rows; ++r)
      offsets.push_back(i * slice_ / 256 * kPage * (c.layer_major ? all_pages : 1));
  runs_ = upload(runs), starts_ = upload(starts), chosen_starts_ = upload(chosen_starts),
  counts_ = upload(counts);
  ids_ = upload(ids), n_ = upload(std::vector<int32_t>{c.rows}), q_start_ = upload(q_start),
  from_ = upload(from);
  split_ = upload(split), offsets_ = upload(offsets), slots_ = upload(slots), pos_ = upload(pos),
  units_ = upload(units);
  std::vector<float> rope;
  for (int i = 0; i < m.dim / 2; ++i) rope.push_back(float(std::pow(1e6, -2.0 * i / m.dim)));
  rope_ = upload(rope);
  scores_ = device_memory(rows * pages_ * 4), index_ = device_memory(rows * std::max(c.chosen, 1) * 4);
  chosen_ = device_memory(rows * std::max(c.chosen, 1) * 8);

  const int64_t places = (c.chosen ? c.chosen : pages_) * kPage;
  splits_ = int((places + c.split - 1) / c.split), grid_ = cuda::decode_grid(cuda::DecodeType::kBF16, m.dim);
  const int64_t parts = rows * m.kv_heads * splits_ * 8;
  part_out_ = device_memory(parts * m.dim * 4), part_lse_ = device_memory(parts * 8);
  SE_CUDA(cudaMemset(part_out_.data(), 0xff, size_t(part_out_.bytes())));
  SE_CUDA(cudaMemset(part_lse_.data(), 0xff, size_t(part_lse_.bytes())));
  ready_ = upload(std::vector<int32_t>(kReady, 0));
  const int64_t pairs = rows * m.top_k;
  route_logits_ = device_memory(rows * m.experts * 4), weight_ = device_memory(pairs * 4);
  expert_ = device_memory(int64_t(m.layers) * pairs * 4), tables_ = device_memory(cuda::kMoeTables + 4);
  SE_CUDA(cudaMemset(tables_.data(), 0, size_t(tables_.bytes())));
  product_ = device_memory((cuda::kMoeProducts + pairs) * m.inner * 2);
  SE_CUDA(cudaMemset(product_.data(), 0xff, size_t(product_.bytes())));
  best_ = device_memory(rows * cuda::kArgmaxBlocks * 8), token_ = device_memory(rows * 4);
  SE_CUDA(cudaDeviceSynchronize());
}

cuda::DecodeParams Chain::attention(int i) const {
  const ChainModel& m = w_.model();
  const int64_t qkv = int64_t(m.q_heads + 2 * m.kv_heads) * m.dim, q = int64_t(m.q_heads) * m.dim;
  const int64_t kv = int64_t(m.kv_heads) * m.dim;
  cuda::DecodeParams p;
  p.k = arena_.data(), p.v = p.k + kPage * kv * 2;
  p.page_stride = 256, p.item_stride = m.dim * 2, p.head_stride = kPage * m.dim * 2;
  p.runs = (c_.chosen ? chosen_ : runs_).ptr<int64_t>(),
  p.start = (c_.chosen ? chosen_starts_ : starts_).ptr<int64_t>();
  p.offset = offsets_.ptr<int64_t>() + int64_t(i) * c_.rows, p.counts = counts_.ptr<int32_t>(),
  p.rows = c_.rows;
  p.ids = ids_.ptr<int32_t>(), p.n = n_.ptr<int32_t>(), p.cap = c_.rows;
  p.ahead = c_.chosen ? cuda::DecodeAhead::kTables : cuda::DecodeAhead::kPast;
  p.q_start = q_start_.ptr<int32_t>(), p.kv_from = from_.ptr<int32_t>(), p.split = split_.ptr<int32_t>();
  p.q = qkv_.ptr<float>(), p.q_token = qkv, p.q_head = m.dim;
  p.new_k = p.q + q, p.new_v = p.new_k + kv, p.new_token = qkv, p.new_head = m.dim;
  p.kv_heads = m.kv_heads, p.group = m.q_heads / m.kv_heads, p.scale = float(1 / std::sqrt(double(m.dim)));
  p.part_out = part_out_.ptr<float>(), p.part_lse = part_lse_.ptr<float>();
  p.max_splits = splits_, p.out_token = q, p.out_head = m.dim;
  if (c_.rows > 8)
    p.out16 = out16_.ptr<__half>();
  else
    p.out = out_.ptr<float>();
  return p;
}

void Chain::layer(int i, Bench& b, unsigned skip) {
  const ChainModel& m = w_.model();
  const ChainWeights::Layer w = w_.layer(i);
  const bool wide = c_.rows > 8;
  const auto on = [&](ChainOp op) { return (skip >> op & 1) == 0; };
  const int qkv = (m.q_heads + 2 * m.kv_heads) * m.dim, q = m.q_heads * m.dim, kv = m.kv_heads * m.dim;
  if (wide && on(kNormOp)) {
    cuda::NormParams p;
    p.x = x_.ptr<float>(), p.w = w_.norms(), p.eps = kEps, p.rows = c_.rows, p.k = m.hidden,
    p.out16 = h16_.ptr<__half>();
    cuda::add_rms_norm(p, b.stream());
  }
  if (on(kQkvOp)) {
    cuda::SkinnyParams p;
    p.w = w.qkv, p.w_scale = w.qkv_scale, p.n = qkv, p.k = m.hidden, p.rows = c_.rows,
    p.y = qkv_.ptr<float>();
    if (wide)
      p.x16 = h16_.data();
    else
      p.x = x_.ptr<float>(), p.norm = w_.norms(), p.eps = kEps;
    cuda::skinny_linear(p, b.stream());
  }
  if (on(kRopeOp)) {
    cuda::RopeWriteParams p;
    p.qkv = qkv_.ptr<float>(), p.tokens = c_.rows, p.q_heads = m.q_heads, p.kv_heads = m.kv_heads,
    p.dim = m.dim;
    p.q_norm = p.k_norm = w_.norms(), p.eps = kEps, p.rope = rope_.ptr<float>(), p.pairs = m.dim / 2;
    p.pos = pos_.ptr<int32_t>(), p.type = cuda::KvType::kBF16, p.slots = slots_.ptr<int64_t>();
    p.slot_offset = i * slice_ / 256 * kPage * (c_.layer_major ? c_.rows * (pages_ + 1) : 1);
    p.k = arena_.data(), p.v = p.k + kPage * kv * 2, p.item_stride = m.dim * 2,
    p.head_stride = kPage * m.dim * 2;
    cuda::qk_norm_rope_write(p, b.stream());
  }
  if (c_.chosen && on(kScoreOp)) {
    quest::cuda::ScoreParams p;
    p.lo = arena_.data() + kPage * kv * 4, p.hi = p.lo + kv * 2;
    p.item_stride = m.dim * 2, p.head_stride = m.dim * 2, p.runs = runs_.ptr<int64_t>(),
    p.start = starts_.ptr<int64_t>();
    p.offset = offsets_.ptr<int64_t>() + int64_t(i) * c_.rows, p.units = units_.ptr<int32_t>(),
    p.pool = c_.rows * pages_;
    p.rows = p.cap = c_.rows, p.ids = ids_.ptr<int32_t>(), p.n = n_.ptr<int32_t>(),
    p.q_start = q_start_.ptr<int32_t>();
    p.q = qkv_.ptr<float>(), p.q_token = qkv, p.q_head = m.dim, p.kv_heads = m.kv_heads,
    p.group = m.q_heads / m.kv_heads;
    p.score = scores_.ptr<float>(), p.score_row = pages_, p.most_units = pages_;
    quest::cuda::score_units(p, b.stream());
  }
  if (c_.chosen && on(kTopKOp)) {
    cuda::TopKParams p;
    p.score = scores_.ptr<float>(), p.score_row = pages_, p.n = units_.ptr<int32_t>(), p.rows = c_.rows,
    p.k = c_.chosen;
    p.index = index_.ptr<int32_t>(), p.index_row = c_.chosen, p.runs = runs_.ptr<int64_t>(),
    p.start = starts_.ptr<int64_t>();
    p.out_runs = chosen_.ptr<int64_t>();
    cuda::top_k(p, b.stream());
  }
  if (on(kAttendOp)) cuda::decode_attention(attention(i), cuda::DecodeType::kBF16, m.dim, grid_, b.stream());
  if (on(kOutOp)) {
    cuda::SkinnyParams p;
    p.w = w.out, p.w_scale = w.out_scale, p.n = m.hidden, p.k = q, p.rows = c_.rows;
    p.residual = x_.ptr<float>(), p.y = x_.ptr<float>();
    if (wide)
      p.x16 = out16_.data();
    else
      p.x = out_.ptr<float>();
    cuda::skinny_linear(p, b.stream());
  }
  cuda::RouteParams r;
  r.x = x_.ptr<float>(), r.norm = w_.norms(), r.eps = kEps, r.gate = w.gate, r.rows = c_.rows, r.k = m.hidden;
  r.experts = m.experts, r.h = h16_.ptr<__half>(), r.logits = route_logits_.ptr<float>();
  if (on(kRouteOp)) cuda::moe_route(r, b.stream());
  if (on(kExpertsOp)) {
    cuda::ExpertParams p;
    p.up = w.up, p.up_scale = w.up_scale, p.down = w.down, p.down_scale = w.down_scale, p.experts = m.experts;
    p.k = m.hidden, p.inner = m.inner, p.rows = c_.rows, p.top_k = m.top_k, p.h = r.h;
    p.logits = r.logits, p.weight = weight_.ptr<float>(), p.tables = tables_.ptr<uint32_t>();
    p.expert = expert_.ptr<int32_t>() + int64_t(i) * c_.rows * m.top_k;
    p.product = product_.ptr<__half>(), p.x = x_.ptr<float>(), p.y = x_.ptr<float>();
    cuda::moe_experts(p, b.stream());
  }
}

void Chain::enqueue(Bench& b, unsigned skip) {
  const ChainModel& m = w_.model();
  SE_CUDA(cudaMemcpyAsync(x_.data(),
                          first_x_.data(),
                          size_t(c_.rows) * size_t(m.hidden) * 4,
                          cudaMemcpyDeviceToDevice,
                          b.stream().get()));
  for (int i = 0; i < m.layers; ++i) layer(i, b, skip);
  if (skip >> kHeadOp & 1) return;
  cuda::SkinnyParams p;
  p.w = w_.head(), p.n = int(m.vocab), p.k = m.hidden, p.rows = c_.rows, p.y = logits_.ptr<float>();
  if (c_.rows > 8) {
    cuda::NormParams n;
    n.x = x_.ptr<float>(), n.w = w_.norms(), n.eps = kEps, n.rows = c_.rows, n.k = m.hidden;
    n.out_bf16 = head_x_.ptr<__nv_bfloat16>(), p.x16 = head_x_.data();
    cuda::add_rms_norm(n, b.stream());
  } else {
    p.x = x_.ptr<float>(), p.norm = w_.norms(), p.eps = kEps;
  }
  cuda::skinny_linear(p, b.stream());
  cuda::argmax({logits_.ptr<float>(),
                c_.rows,
                m.vocab,
                best_.ptr<uint64_t>(),
                ready_.ptr<int32_t>() + 128,
                token_.ptr<int32_t>()},
               b.stream());
}

int Chain::kernels(unsigned skip) const {
  int n = 0;
  for (int op = 0; op < kHeadOp; ++op) {
    const bool there = op == kNormOp ? c_.rows > 8 : op == kScoreOp || op == kTopKOp ? c_.chosen > 0 : true;
    if (there && (skip >> op & 1) == 0) ++n;
  }
  return n;
}

double Chain::layer_bytes(ChainOp op) const {
  const ChainModel& m = w_.model();
  const double h = m.hidden, q = double(m.q_heads) * m.dim, kv = double(m.kv_heads) * m.dim;
  switch (op) {
    case kQkvOp:
      return (q + 2 * kv) * h;
    case kOutOp:
      return q * h;
    case kScoreOp:
      return c_.chosen ? double(c_.rows) * double(pages_) * kv * 4 : 0;
    case kAttendOp:
      return double(c_.rows) * double(c_.chosen ? c_.chosen : pages_) * kPage * kv * 4;
    case kRouteOp:
      return m.experts * h * 2;
    case kExpertsOp:
      return distinct_experts() * 3 * m.inner * h;
    case kHeadOp:
      return double(m.vocab) * h * 2;
    default:
      return 0;
  }
}

double Chain::distinct_experts() const {
  const ChainModel& m = w_.model();
  const int64_t pairs = int64_t(c_.rows) * m.top_k;
  const auto expert = download<int32_t>(expert_.data(), m.layers * pairs);
  double sum = 0;
  for (int64_t i = 0; i < m.layers; ++i)
    sum += double(std::set<int32_t>(expert.begin() + i * pairs, expert.begin() + (i + 1) * pairs).size());
  return sum / m.layers;
}

}  // namespace se::kbench
