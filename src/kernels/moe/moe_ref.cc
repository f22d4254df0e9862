#include "kernels/moe/moe_ref.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/quant/quant.h"

namespace se {
namespace {

using Vector = std::vector<double>;

// y = w x, and to `error` what the f32 product may err by, in epsilons, of exact x.
void product(const TensorView& w, const Vector& x, Vector& y, Vector& error) {
  const size_t out = size_t(w.shape[0]), in = size_t(w.shape[1]);
  std::vector<float> row(in);
  y.assign(out, 0), error.assign(out, 0);
  for (size_t o = 0; o < out; ++o) {
    dequantize(w.dtype, w.at<char>(int64_t(o)), int64_t(in), row.data());
    for (size_t i = 0; i < in; ++i) {
      y[o] += double(row[i]) * x[i];
      error[o] += std::fabs(double(row[i]) * x[i]);
    }
    error[o] *= double(in) / 16 + 6;
  }
}

// What errors of x become in w x.
Vector passed_on(const TensorView& w, const Vector& x_error) {
  Vector out(size_t(w.shape[0]));
  std::vector<float> row(x_error.size());
  for (size_t o = 0; o < out.size(); ++o) {
    dequantize(w.dtype, w.at<char>(int64_t(o)), int64_t(row.size()), row.data());
    for (size_t i = 0; i < row.size(); ++i) out[o] += std::fabs(double(row[i])) * x_error[i];
  }
  return out;
}

std::vector<size_t> order(const Vector& v) {
  std::vector<size_t> at(v.size());
  std::iota(at.begin(), at.end(), size_t(0));
  std::stable_sort(at.begin(), at.end(), [&](size_t a, size_t b) { return v[a] > v[b]; });
  return at;
}

}  // namespace

RoutedRow moe_route_ref(std::span<const float> logits, std::span<const float> bias, const MoeRouting& r) {
  const size_t n = logits.size(), size = n / size_t(r.groups);
  Vector score(n), choice(n);
  double sum = 0;
  for (size_t e = 0; e < n; ++e) sum += std::exp(double(logits[e]));
  for (size_t e = 0; e < n; ++e) {
    const double p = std::exp(double(logits[e]));
    score[e] = r.score == RouterScore::kSoftmax ? p / sum : p / (1 + p);
    choice[e] = score[e] + (bias.empty() ? 0 : double(bias[e]));
  }
  Vector groups;
  for (size_t g = 0; r.groups > 1 && g < size_t(r.groups); ++g) {
    Vector members(choice.begin() + std::ptrdiff_t(g * size),
                   choice.begin() + std::ptrdiff_t((g + 1) * size));
    std::sort(members.rbegin(), members.rend());
    groups.push_back(members[0] + (size > 1 ? members[1] : 0));
  }
  const std::vector<size_t> best = order(groups);
  for (size_t i = size_t(r.groups_used); i < best.size(); ++i) {
    for (size_t e = best[i] * size; e < (best[i] + 1) * size; ++e) choice[e] = -INFINITY;
  }
  RoutedRow row;
  double total = 0;
  for (const size_t e : order(choice)) {
    if (row.ids.size() == size_t(r.used)) break;
    row.ids.push_back(int32_t(e));
    row.weights.push_back(score[e]);
    total += score[e];
  }
  for (double& w : row.weights) w *= double(r.scale) / (r.normalise ? total : 1);
  return row;
}

void moe_experts_ref(std::span<const float> x,
                     std::span<const int32_t> ids,
                     std::span<const float> weights,
                     std::span<const Expert> experts,
                     std::vector<double>& out,
                     std::vector<double>& error) {
  const Vector input(x.begin(), x.end());
  out.assign(x.size(), 0), error.assign(x.size(), 0);
  for (size_t s = 0; s < ids.size(); ++s) {
    const Expert& e = experts[size_t(ids[s])];
    Vector gate, up, y, gate_error, up_error, y_error;
    product(e.gate, input, gate, gate_error);
    product(e.up, input, up, up_error);
    Vector h(gate.size()), h_error(gate.size());
    for (size_t f = 0; f < h.size(); ++f) {
      const double silu = gate[f] / (1 + std::exp(-gate[f]));
      h[f] = silu * up[f];
      h_error[f] =
          4 * std::fabs(h[f]) + 1.1 * std::fabs(up[f]) * gate_error[f] + std::fabs(silu) * up_error[f];
    }
    product(e.down, h, y, y_error);
    const Vector more = passed_on(e.down, h_error);
    const double w = double(weights[s]);
    for (size_t d = 0; d < out.size(); ++d) {
      out[d] += w * y[d];
      error[d] += std::fabs(w) * (y_error[d] + more[d] + double(ids.size()) * std::fabs(y[d]));
    }
  }
}

}  // namespace se
