#include "sparse/testing/slow_port.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "device/cpu/thread_pool.h"

namespace se::testing {
namespace {

using Row = std::vector<double>;

void normalise(Row& x, const TensorView& w, double eps) {
  if (w.empty()) return;
  double sum = 0;
  for (double v : x) sum += v * v;
  for (size_t d = 0; d < x.size(); ++d)
    x[d] = x[d] / std::sqrt(sum / double(x.size()) + eps) * double(w.ptr<float>()[d]);
}

// The channels from `first` on.
void rotate(Row& x, size_t first, const QkTransform& t, size_t position) {
  const size_t pairs = t.rope.empty() ? 0 : size_t(t.rope.numel());
  for (size_t i = 0; i < pairs; ++i) {
    const double angle = double(float(position) * t.rope.ptr<float>()[i]);
    const double c = std::cos(angle) * double(t.amplitude), s = std::sin(angle) * double(t.amplitude);
    double &u = x[first + (t.interleaved ? 2 * i : i)],
           &v = x[first + (t.interleaved ? 2 * i + 1 : i + pairs)];
    const double u0 = u;
    u = u0 * c - v * s;
    v = v * c + u0 * s;
  }
}

// y = w[head] x over the latent channels.
Row expand(const TensorView& w, int64_t head, const Row& x) {
  Row y(size_t(w.shape[1]), 0);
  for (size_t i = 0; i < y.size(); ++i) {
    for (int64_t d = 0; d < w.shape[2]; ++d) y[i] += double(*w.at<float>(head, int64_t(i), d)) * x[size_t(d)];
  }
  return y;
}

Row row_of(const TensorView& t, int64_t token, int64_t head, int64_t dim) {
  const float* x = t.ptr<float>() + token * t.shape[1] + head * dim;
  return Row(x, x + dim);
}

double dot(const Row& a, const Row& b) {
  double s = 0;
  for (size_t d = 0; d < a.size(); ++d) s += a[d] * b[d];
  return s;
}

}  // namespace

void SlowPort::attend(int layer,
                      const TensorView& q,
                      const TensorView& k,
                      const TensorView& v,
                      const TensorView& out,
                      Stream&) {
  const LayerKv& l = kv_.layers[size_t(layer)];
  auto &keys = keys_[size_t(layer)], &values = values_[size_t(layer)];
  const size_t begin = keys.size();
  queries_.assign(size_t(q.shape[0]), {});
  for (int64_t t = 0; t < q.shape[0]; ++t) {
    const size_t position = keys.size();
    std::vector<Row> k_now, v_now;
    for (int h = 0; h < l.kv_heads; ++h) {
      Row key = row_of(k, t, h, l.k_dim);
      normalise(key, l.qk.k_norm, double(l.qk.eps));
      rotate(key, size_t(l.latent() ? l.v_dim : 0), l.qk, position);
      if (!l.latent()) {
        k_now.push_back(key), v_now.push_back(row_of(v, t, h, l.v_dim));
        continue;
      }
      for (int a = 0; a < l.q_heads; ++a) {
        Row wide = expand(l.w_uk, a, key);
        wide.insert(wide.end(), key.begin() + l.v_dim, key.end());
        k_now.push_back(wide), v_now.push_back(expand(l.w_uv, a, key));
      }
    }
    keys.push_back(k_now), values.push_back(v_now);
    for (int a = 0; a < l.q_heads; ++a) {
      Row query = row_of(q, t, a, l.q_dim());
      normalise(query, l.qk.q_norm, double(l.qk.eps));
      rotate(query, l.latent() ? size_t(l.w_uk.shape[1]) : 0, l.qk, position);
      queries_[size_t(t)].push_back(query);
    }
  }
  for (int64_t t = 0; t < q.shape[0]; ++t) {
    for (int a = 0; a < l.q_heads; ++a) {
      const std::vector<Column> seen = columns(layer, size_t(t), a, begin + size_t(t));
      Row p;
      for (const Column& c : seen) p.push_back(double(l.scale) * dot(queries_[size_t(t)][size_t(a)], *c.k));
      const double top = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (size_t i = 0; i < p.size(); ++i) sum += p[i] = seen[i].times * std::exp(p[i] - top);
      for (int64_t d = 0; d < l.out_dim(); ++d) {
        double o = 0;
        for (size_t i = 0; i < seen.size(); ++i) o += p[i] * (*seen[i].v)[size_t(d)];
        out.ptr<float>()[t * out.shape[1] + a * l.out_dim() + d] = float(o / sum);
      }
    }
  }
}

std::vector<SlowPort::Column> SlowPort::columns(int layer, size_t, int a, size_t position) {
  const LayerKv& l = kv_.layers[size_t(layer)];
  const auto &keys = keys_[size_t(layer)], &values = values_[size_t(layer)];
  const size_t head = size_t(a) / (size_t(l.q_heads) / keys[0].size());
  std::vector<Column> seen;
  for (size_t j = 0; j <= position; ++j) {
    if (l.kind != LayerKind::kWindow || position - j < size_t(l.window))
      seen.push_back({&keys[j][head], &values[j][head]});
  }
  return seen;
}

std::vector<float> last_state(const TestModel& model, SlowPort& port, std::span<const int32_t> ids) {
  ThreadPool pool(1);
  Stream stream(pool);
  std::vector<float> x;
  model.embed(ids, x);
  for (int l = 0; l < model.layers(); ++l) model.layer(l, x, port, stream);
  return {x.end() - model.hidden(), x.end()};
}

void expect_as_twin(std::span<const float> got, std::span<const float> want, int64_t step) {
  float scale = 0;
  for (float w : want) scale = std::max(scale, std::fabs(w));
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5f * scale) << step << " " << i;
}

}  // namespace se::testing
