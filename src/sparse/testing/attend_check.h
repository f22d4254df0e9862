// sparse/testing/attend_check.h -- does a codec's attention read what it is said to hold? For tests of single
// codecs.
#pragma once
#include <cmath>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "kernels/attention/attention.h"
#include "sparse/testing/fake_view.h"

namespace se {

struct ExactKv {  // of one row, oldest token first: [tokens, kv_heads, dim]
  std::vector<float> k, v;
};

// Random q, k, v; k and v rounded to the model's KV dtype (f16 here).
struct RandomPresent {
  std::vector<float> q, k, v;
  Present x;
  RandomPresent(const LayerKv& l, int64_t tokens, uint64_t seed) {
    q.resize(size_t(tokens * l.q_heads * l.k_dim)), k.resize(size_t(tokens * l.kv_heads * l.k_dim));
    v.resize(size_t(tokens * l.kv_heads * l.v_dim));
    Rng rng(seed);
    for (std::vector<float>* t : {&q, &k, &v}) {
      for (float& f : *t) f = t == &q ? rng.normal() : f16_to_f32(f32_to_f16(rng.normal()));
    }
    x.q = TensorView::of(q.data(), DType::kF32, {tokens, l.q_heads, l.k_dim});
    x.k = TensorView::of(k.data(), DType::kF32, {tokens, l.kv_heads, l.k_dim});
    x.v = TensorView::of(v.data(), DType::kF32, {tokens, l.kv_heads, l.v_dim});
    if (l.latent()) x.v = x.k, x.v.shape[2] = l.v_dim;
  }
};

// Largest difference between the codec's parts over `read` and attention in double over `past` (by row) and
// the present.
inline double attend_error(FakeView& view,
                           const Codec& codec,
                           int layer,
                           const KvIndex& read,
                           const LayerKv& l,
                           const Present& x,
                           const std::vector<ExactKv>& past) {
  DeviceStep s = view.step();
  AttentionView parts;
  codec.parts(layer, read, parts, s);
  int taker = -1;
  for (int p = 0; p < parts.n; ++p) taker = parts.parts[size_t(p)].with_present ? p : taker;
  SE_CHECK(taker >= 0, "no part takes the present");
  const int64_t tokens = view.tokens();
  AttendArgs a;
  a.rows = &view.step_rows(), a.list = view.list(), a.q = x.q, a.scale = l.scale, a.scratch = &view.arena();
  const TensorView out = view.arena().take(DType::kF32, {tokens, l.q_heads, l.v_dim});
  const TensorView lse = view.arena().take(DType::kF32, {tokens, l.q_heads});
  for (int p = 0; p < parts.n; ++p) {
    a.out = p == 0 ? out : view.arena().take(DType::kF32, {tokens, l.q_heads, l.v_dim});
    a.lse = p == 0 ? lse : view.arena().take(DType::kF32, {tokens, l.q_heads});
    a.present = p == taker ? &x : nullptr;
    if (l.latent()) parts.parts[size_t(p)].v_in_k = l.v_dim;  // as the driver does
    parts.parts[size_t(p)].attend(a, parts.parts[size_t(p)], view.stream());
    if (p > 0) merge_attention(*a.rows, a.list, a.out, a.lse, out, lse, view.stream());
  }

  double worst = 0;
  const int64_t group = l.q_heads / l.kv_heads;
  for (int64_t r = 0; r < int64_t(past.size()); ++r) {
    const int32_t *start = view.step_rows().q_start.ptr<int32_t>(), first = start[r];
    const ExactKv& held = past[size_t(r)];
    const int64_t n_past = int64_t(held.k.size()) / (l.kv_heads * l.k_dim);
    for (int64_t t = first; t < start[r + 1]; ++t) {
      for (int64_t h = 0; h < l.q_heads; ++h) {
        const int64_t n = n_past + t - first + 1;
        const auto key = [&](int64_t j) {
          return j < n_past ? held.k.data() + (j * l.kv_heads + h / group) * l.k_dim
                            : x.k.at<float>(first + j - n_past, h / group);
        };
        const auto value = [&](int64_t j) {
          if (l.latent()) return key(j);
          return j < n_past ? held.v.data() + (j * l.kv_heads + h / group) * l.v_dim
                            : x.v.at<float>(first + j - n_past, h / group);
        };
        std::vector<double> p(static_cast<size_t>(n)), want(static_cast<size_t>(l.v_dim), 0.0);
        double sum = 0, top = -INFINITY;
        for (int64_t j = 0; j < n; ++j) {
          double dot = 0;
          for (int64_t d = 0; d < l.k_dim; ++d) dot += double(*x.q.at<float>(t, h, d)) * key(j)[d];
          p[size_t(j)] = dot * l.scale, top = std::max(top, p[size_t(j)]);
        }
        for (double& w : p) w = std::exp(w - top), sum += w;
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t d = 0; d < l.v_dim; ++d) want[size_t(d)] += p[size_t(j)] / sum * value(j)[d];
        }
        for (int64_t d = 0; d < l.v_dim; ++d) {
          const double error = std::fabs(want[size_t(d)] - *out.at<float>(t, h, d));
          worst = error > worst || error != error ? error : worst;
        }
      }
    }
  }
  return worst;
}

// What values() says the paged tokens of each row hold. values: not for latent layers.
inline std::vector<ExactKv> stored_rows(
    FakeView& view, const Codec& codec, int layer, const KvIndex& index, bool values = true) {
  DeviceStep s = view.step();
  const StoredKv got = codec.values(layer, index, values, s);
  std::vector<ExactKv> rows;
  int64_t at = 0;
  for (int64_t r = 0; r < index.counts.numel(); ++r) {
    const int64_t n = index.tokens.ptr<int32_t>()[r], k = got.k.shape[1] * got.k.shape[2],
                  v = values ? got.v.shape[1] * got.v.shape[2] : 0;
    rows.push_back({{got.k.ptr<float>() + at * k, got.k.ptr<float>() + (at + n) * k}, {}});
    if (values) rows.back().v.assign(got.v.ptr<float>() + at * v, got.v.ptr<float>() + (at + n) * v);
    at += n;
  }
  return rows;
}

inline ModelKv tiny_model(int kv_heads, int group, int dim, DType dtype = DType::kF16, int layers = 2) {
  ModelKv m;
  m.dtype = dtype;
  LayerKv l;
  l.q_heads = kv_heads * group, l.kv_heads = kv_heads, l.k_dim = l.v_dim = dim;
  l.scale = 1 / std::sqrt(float(dim));
  m.layers.assign(size_t(layers), l);
  return m;
}

// One latent head for all query heads; its expansions are all zero and only there.
inline ModelKv latent_tiny_model(int heads, int latent, int rope) {
  static std::vector<float> zeros(1 << 16);
  ModelKv m = tiny_model(1, heads, latent + rope);
  for (LayerKv& l : m.layers) {
    l.v_dim = latent;
    l.w_uk = l.w_uv = TensorView::of(zeros.data(), DType::kF32, {heads, 8, latent});
  }
  return m;
}

}  // namespace se
