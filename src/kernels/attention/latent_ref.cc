#include <vector>

#include "base/half.h"
#include "kernels/attention/latent.h"

namespace se::ref {
namespace {

double weight(const TensorView& w, int64_t head, int64_t row, int64_t d) {
  const auto half = [&] { return *w.at<uint16_t>(head, row, d); };
  return double(w.dtype == DType::kF32   ? *w.at<float>(head, row, d)
                : w.dtype == DType::kF16 ? f16_to_f32(half())
                                         : bf16_to_f32(half()));
}

void multiply(const TensorView& w, int head, const float* x, float* y) {
  for (int64_t i = 0; i < w.shape[1]; ++i) {
    double sum = 0;
    for (int64_t d = 0; d < w.shape[2]; ++d) sum += weight(w, head, i, d) * double(x[d]);
    y[i] = float(sum);
  }
}

}  // namespace

void absorb_query(const LayerKv& l, int head, const float* q, float* out) {
  const int64_t nope = l.w_uk.shape[1];
  for (int64_t d = 0; d < l.v_dim; ++d) {
    double sum = 0;
    for (int64_t i = 0; i < nope; ++i) sum += double(q[i]) * weight(l.w_uk, head, i, d);
    out[d] = float(sum);
  }
  for (int d = l.v_dim; d < l.k_dim; ++d) out[d] = q[nope + d - l.v_dim];
}

void expand_key(const LayerKv& l, int head, const float* key, float* k, float* v) {
  const int64_t nope = l.w_uk.shape[1];
  multiply(l.w_uk, head, key, k);
  for (int d = l.v_dim; d < l.k_dim; ++d) k[nope + d - l.v_dim] = key[d];
  multiply(l.w_uv, head, key, v);
}

void latent_output(const LayerKv& l, int head, const float* o, float* out) { multiply(l.w_uv, head, o, out); }

}  // namespace se::ref
