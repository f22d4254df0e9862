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

const char* to_string(Toy kind) {
  constexpr const char* kNames[] = {"plain", "norms", "windows", "latent"};
  return kNames[size_t(kind)];
}

ToyModel::ToyModel(Toy kind, uint64_t seed, DType kv_dtype) {
  const bool latent = kind == Toy::kLatent, norms = kind == Toy::kNorms || kind == Toy::kWindows;
  constexpr int kQHeads = 4, kDim = 32, kNope = 12, kRope = 8, kValue = 16;
  Rng rng(seed);
  table_ = normal(rng, kVocab * kHidden, 1);
  frequencies_ = rope_frequencies(latent ? kRope : kDim, 100);
  local_frequencies_ = rope_frequencies(kDim, 20);
  const float scale = 1.2f / std::sqrt(float(kHidden));
  const auto view = [](std::vector<float>& w) {
    return TensorView::of(w.data(), DType::kF32, {int64_t(w.size())});
  };
  LayerKv shape;
  shape.q_heads = kQHeads, shape.kv_heads = 2, shape.k_dim = shape.v_dim = kDim;
  shape.scale = 1 / std::sqrt(float(kDim));
  if (latent) {
    shape.kv_heads = 1, shape.k_dim = kDim + kRope;
    shape.scale = 1 / std::sqrt(float(kNope + kRope));
    shape.qk.interleaved = true;
  }
  const int layers = kind == Toy::kWindows ? 6 : 4;
  layers_.resize(size_t(layers));
  for (int l = 0; l < layers; ++l) {
    Layer& w = layers_[size_t(l)];
    LayerKv kv = shape;
    if (latent) {
      w.kv_b = normal(rng, kQHeads * (kNope + kValue) * kDim, 1 / std::sqrt(float(kDim)));
      const auto part = [&](int first, int rows) {  // of [q_heads, nope + value, latent]
        TensorView t = TensorView::of(w.kv_b.data() + first * kDim, DType::kF32, {kQHeads, rows, kDim});
        t.stride[0] = (kNope + kValue) * kDim * 4;
        return t;
      };
      kv.w_uk = part(0, kNope), kv.w_uv = part(kNope, kValue);
    }
    w.q = normal(rng, kQHeads * kv.q_dim() * kHidden, scale);
    w.k = normal(rng, kv.kv_heads * kv.k_dim * kHidden, scale);
    if (!latent) w.v = normal(rng, kv.kv_heads * kv.v_dim * kHidden, scale);
    w.o = normal(rng, kHidden * kQHeads * kv.out_dim(), 1 / std::sqrt(float(kQHeads * kv.out_dim())));
    kv.qk.rope = view(frequencies_);
    if (norms) {
      w.q_norm = normal(rng, kDim, 0.3f), w.k_norm = normal(rng, kDim, 0.3f);
      for (float& x : w.q_norm) x += 1.2f;
      for (float& x : w.k_norm) x += 1.2f;
      kv.qk.q_norm = view(w.q_norm), kv.qk.k_norm = view(w.k_norm), kv.qk.eps = 1e-6f;
    }
    if (kind == Toy::kWindows && l % 3 != 2) {
      kv.kind = LayerKind::kWindow, kv.window = 24;
      kv.qk.rope = view(local_frequencies_);
    }
    kv_.layers.push_back(kv);
  }
  kv_.dtype = kv_dtype;
}

void ToyModel::embed(std::span<const int32_t> ids, std::vector<float>& x) const {
  x.resize(ids.size() * kHidden);
  for (size_t i = 0; i < ids.size(); ++i)
    std::copy_n(table_.begin() + int64_t(ids[i]) * kHidden, kHidden, x.begin() + int64_t(i) * kHidden);
}

void ToyModel::layer(int l, std::span<float> x, AttentionPort& port, Stream& stream) const {
  const Layer& w = layers_[size_t(l)];
  const LayerKv& kv = kv_.layers[size_t(l)];
  const int64_t rows = int64_t(x.size()) / kHidden;
  const int out_dim = kv.q_heads * kv.out_dim();
  std::vector<float> h(x.begin(), x.end()), q, k, v, out(size_t(rows * out_dim)), y;
  for (int64_t r = 0; r < rows; ++r) {  // unit mean square
    float* row = h.data() + r * kHidden;
    float sum = 0;
    for (int i = 0; i < kHidden; ++i) sum += row[i] * row[i];
    const float s = 1 / std::sqrt(sum / kHidden + 1e-6f);
    for (int i = 0; i < kHidden; ++i) row[i] *= s;
  }
  matmul(h, w.q, kHidden, kv.q_heads * kv.q_dim(), q);
  matmul(h, w.k, kHidden, kv.kv_heads * kv.k_dim, k);
  if (!w.v.empty()) matmul(h, w.v, kHidden, kv.kv_heads * kv.v_dim, v);
  const auto view = [&](std::vector<float>& t) {
    return t.empty() ? TensorView() : TensorView::of(t.data(), DType::kF32, {rows, int64_t(t.size()) / rows});
  };
  port.attend(l, view(q), view(k), view(v), view(out), stream);
  matmul(out, w.o, out_dim, kHidden, y);
  for (size_t i = 0; i < y.size(); ++i) x[i] += y[i];
}

Player::Player(const TestModel& model, int64_t kv_bytes, int threads)
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
  const int64_t n = int64_t(ids.size()), hidden = model_.hidden();
  seq.start_turn(n, max_new);
  std::vector<float> x;
  model_.embed(ids, x);
  const auto rows = [&](int64_t first, int64_t count) {
    return std::span<float>(x.data() + first * hidden, size_t(count * hidden));
  };
  const auto must = [](const Status& s) { SE_CHECK(s.ok(), "{}", s.message()); };
  if (plan.staging == Staging::kLayer) {
    for (int l = 0; l < model_.layers(); ++l) {
      for (int64_t at = 0; at < n;) {
        const int64_t m = plan.next_slice(at, n, chunk);
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
      for (int l = 0; l < model_.layers(); ++l) model_.layer(l, rows(at, m), *driver_, stream_);
      must(driver_->commit().front());
      at += m;
    }
  }
  store_->check(seq.kv());
  return {x.end() - hidden, x.end()};
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
  for (int l = 0; l < model_.layers(); ++l) model_.layer(l, x, *driver_, stream_);
  const std::vector<Status> committed = driver_->commit();
  for (const Status& s : committed) SE_CHECK(statuses || s.ok(), "{}", s.message());
  if (statuses) *statuses = committed;
  std::vector<std::vector<float>> out;
  const int64_t hidden = model_.hidden();
  for (size_t i = 0; i < seqs.size(); ++i) {
    out.emplace_back(x.begin() + int64_t(i) * hidden, x.begin() + int64_t(i + 1) * hidden);
    store_->check(seqs[i]->kv());
  }
  return out;
}

std::vector<float> Player::decode(PlanSequence& seq, int32_t id) {
  PlanSequence* one = &seq;
  return decode(std::span(&one, 1), std::span(&id, 1)).front();
}

std::vector<int32_t> random_ids(uint64_t seed, int64_t n, int32_t vocab) {
  Rng rng(seed, 7);
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t& id : ids) id = int32_t(rng.below(uint64_t(vocab)));
  return ids;
}

}  // namespace se::testing
