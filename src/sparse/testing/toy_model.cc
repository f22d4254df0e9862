#include "sparse/testing/toy_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "kernels/rope/rope.h"

namespace se::testing {
namespace {

std::vector<float> normal(Rng& rng, int64_t n, float scale) {
  std::vector<float> w(static_cast<size_t>(n));
  for (float& v : w) v = rng.normal() * scale;
  return w;
}

// y [rows, out] = x [rows, in] w^T, w [out, in].
void matmul(std::span<const float> x, std::span<const float> w, int in, int out, std::vector<float>& y) {
  const size_t rows = x.size() / size_t(in);
  y.assign(rows * size_t(out), 0);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < size_t(out); ++o) {
      float sum = 0;
      for (size_t i = 0; i < size_t(in); ++i) sum += x[r * size_t(in) + i] * w[o * size_t(in) + i];
      y[r * size_t(out) + o] = sum;
    }
  }
}

}  // namespace

ToyModel::ToyModel(uint64_t seed) {
  Rng rng(seed);
  table_ = normal(rng, kVocab * kHidden, 1);
  frequencies_ = rope_frequencies(kDim, 100);
  const float scale = 1.2f / std::sqrt(float(kHidden));
  for (int l = 0; l < kLayers; ++l) {
    layers_.push_back({normal(rng, kQHeads * kDim * kHidden, scale),
                       normal(rng, kKvHeads * kDim * kHidden, scale),
                       normal(rng, kKvHeads * kDim * kHidden, scale),
                       normal(rng, kHidden * kQHeads * kDim, 1 / std::sqrt(float(kQHeads * kDim)))});
    LayerKv kv;
    kv.q_heads = kQHeads, kv.kv_heads = kKvHeads, kv.k_dim = kv.v_dim = kDim,
    kv.scale = 1 / std::sqrt(float(kDim));
    kv.qk.rope = TensorView::of(frequencies_.data(), DType::kF32, {int64_t(frequencies_.size())});
    kv_.layers.push_back(kv);
  }
  kv_.dtype = DType::kF16;
}

void ToyModel::embed(std::span<const int32_t> ids, std::vector<float>& x) const {
  x.resize(ids.size() * kHidden);
  for (size_t i = 0; i < ids.size(); ++i)
    std::copy_n(table_.begin() + int64_t(ids[i]) * kHidden, kHidden, x.begin() + int64_t(i) * kHidden);
}

void ToyModel::layer(int l, std::span<float> x, AttentionPort& port, Stream& stream) const {
  const Layer& w = layers_[size_t(l)];
  const int64_t rows = int64_t(x.size()) / kHidden;
  std::vector<float> h(x.begin(), x.end()), q, k, v, out(size_t(rows) * kQHeads * kDim), y;
  for (int64_t r = 0; r < rows; ++r) {  // unit mean square
    float* row = h.data() + r * kHidden;
    float sum = 0;
    for (int i = 0; i < kHidden; ++i) sum += row[i] * row[i];
    const float s = 1 / std::sqrt(sum / kHidden + 1e-6f);
    for (int i = 0; i < kHidden; ++i) row[i] *= s;
  }
  matmul(h, w.q, kHidden, kQHeads * kDim, q);
  matmul(h, w.k, kHidden, kKvHeads * kDim, k);
  matmul(h, w.v, kHidden, kKvHeads * kDim, v);
  const auto view = [&](std::vector<float>& t) {
    return TensorView::of(t.data(), DType::kF32, {rows, int64_t(t.size()) / rows});
  };
  port.attend(l, view(q), view(k), view(v), view(out), stream);
  matmul(out, w.o, kQHeads * kDim, kHidden, y);
  for (size_t i = 0; i < y.size(); ++i) x[i] += y[i];
}

Player::Player(const ToyModel& model, int64_t kv_bytes, int threads)
    : model_(model), pool_(threads), stream_(pool_) {
  auto store = KvStore::create(kv_bytes);
  SE_CHECK(store.ok(), "{}", store.status().message());
  store_ = store.take();
  driver_ = std::make_unique<Driver>(model.kv(), *store_, stream_);
  slicer_ = std::make_unique<Driver>(model.kv(), *store_, stream_);
}
Player::~Player() = default;

std::unique_ptr<PlanSequence> Player::open(const std::string& text) {
  auto plan = parse_plan(text, model_.kv());
  SE_CHECK(plan.ok(), "{}: {}", text, plan.status().message());
  return open(plan.take());
}

std::unique_ptr<PlanSequence> Player::open(std::shared_ptr<const Plan> plan) {
  auto seq = driver_->open(std::move(plan));
  SE_CHECK(seq.ok(), "{}", seq.status().message());
  return seq.take();
}

std::vector<float> Player::prefill(PlanSequence& seq,
                                   std::span<const int32_t> ids,
                                   int64_t chunk,
                                   int64_t max_new) {
  const Plan& plan = seq.plan();
  const int64_t n = int64_t(ids.size());
  seq.start_turn(n, max_new);
  std::vector<float> x;
  model_.embed(ids, x);
  const auto rows = [&](int64_t first, int64_t count) {
    return std::span<float>(x.data() + first * ToyModel::kHidden, size_t(count * ToyModel::kHidden));
  };
  const auto must = [](const Status& s) { SE_CHECK(s.ok(), "{}", s.message()); };
  if (plan.staging == Staging::kLayer) {
    for (int l = 0; l < ToyModel::kLayers; ++l) {
      for (int64_t at = 0; at < n;) {
        int64_t m = std::min(std::max(chunk, plan.last_chunk), n - at);
        if (n - at - m > 0 && n - at - m < plan.last_chunk) m = n - at;
        must(slicer_->begin_slice(seq, l, at, m));
        model_.layer(l, rows(at, m), *slicer_, stream_);
        must(slicer_->end_slice());
        at += m;
      }
    }
    must(slicer_->commit_prompt(seq));
  } else {
    for (int64_t at = 0; at < n;) {
      int64_t m = std::min(chunk, n - at);
      if (plan.chunk > 0) m = std::min(n - at, plan.chunk - seq.logical() % plan.chunk);
      const DriverRow row{&seq, m, false, at + m == n};
      must(driver_->begin(std::span(&row, 1)));
      for (int l = 0; l < ToyModel::kLayers; ++l) model_.layer(l, rows(at, m), *driver_, stream_);
      must(driver_->commit().front());
      at += m;
    }
  }
  store_->check(seq.kv());
  return {x.end() - ToyModel::kHidden, x.end()};
}

std::vector<std::vector<float>> Player::decode(std::span<PlanSequence* const> seqs,
                                               std::span<const int32_t> ids,
                                               std::vector<Status>* statuses) {
  std::vector<DriverRow> rows;
  for (PlanSequence* s : seqs) rows.push_back({s, 1, true, false});
  std::vector<float> x;
  model_.embed(ids, x);
  const Status begun = driver_->begin(rows);
  SE_CHECK(begun.ok(), "{}", begun.message());
  for (int l = 0; l < ToyModel::kLayers; ++l) model_.layer(l, x, *driver_, stream_);
  const std::vector<Status> committed = driver_->commit();
  for (const Status& s : committed) SE_CHECK(statuses || s.ok(), "{}", s.message());
  if (statuses) *statuses = committed;
  std::vector<std::vector<float>> out;
  for (size_t i = 0; i < seqs.size(); ++i) {
    out.emplace_back(x.begin() + int64_t(i) * ToyModel::kHidden,
                     x.begin() + int64_t(i + 1) * ToyModel::kHidden);
    store_->check(seqs[i]->kv());
  }
  return out;
}

std::vector<float> Player::decode(PlanSequence& seq, int32_t id) {
  PlanSequence* one = &seq;
  return decode(std::span(&one, 1), std::span(&id, 1)).front();
}

std::vector<int32_t> random_ids(uint64_t seed, int64_t n) {
  Rng rng(seed, 7);
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t& id : ids) id = int32_t(rng.below(ToyModel::kVocab));
  return ids;
}

}  // namespace se::testing
