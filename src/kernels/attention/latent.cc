#include "kernels/attention/latent.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "device/cpu/thread_pool.h"
#include "kernels/attention/core.h"
#include "kernels/attention/walk.h"

namespace se {
namespace {

using cpu::AttentionCore;
using cpu::kKeyBlock;

// One head's matrix [rows, dim] of a weight.
struct HeadMatrix {
  const char* data;
  int64_t stride, rows;
  int dim;
  cpu::RowType type;

  HeadMatrix(const TensorView& w, int64_t head)
      : data(w.at<char>(head)),
        stride(w.stride[1]),
        rows(w.shape[1]),
        dim(int(w.shape[2])),
        type(cpu::row_type(w.dtype)) {}
  // Up to kKeyBlock rows from `begin` on; dots takes them by four, so the last one fills up.
  int block(int64_t begin, const void** to) const {
    const int n = int(std::min<int64_t>(kKeyBlock, rows - begin));
    for (int j = 0; j < (n + 3) / 4 * 4; ++j) to[j] = data + (begin + std::min(j, n - 1)) * stride;
    return n;
  }
};

// y[r][0 .. m.rows) = m x[r] for `rows` <= kKeyBlock rows; strides in floats.
void multiply(const AttentionCore& core,
              const HeadMatrix& m,
              const float* x,
              int64_t x_stride,
              int rows,
              float* y,
              int64_t y_stride) {
  const void* w[kKeyBlock];
  float sums[kKeyBlock * kKeyBlock];
  for (int64_t i = 0; i < m.rows; i += kKeyBlock) {
    const int n = m.block(i, w);
    core.dots(x, x_stride, rows, w, m.type, n, m.dim, sums, nullptr);
    for (int r = 0; r < rows; ++r)
      std::memcpy(y + r * y_stride + i, sums + r * kKeyBlock, size_t(n) * sizeof(float));
  }
}

void check_layer(const LayerKv& l) {
  const auto fits = [&](const TensorView& w) {
    return w.rank == 3 && w.shape[0] == l.q_heads && w.shape[2] == l.v_dim &&
           w.stride[2] == block_bytes(w.dtype);
  };
  SE_CHECK(fits(l.w_uk) && fits(l.w_uv) && l.v_dim % 8 == 0 && l.v_dim < l.k_dim,
           "w_uk {}, w_uv {}: expected [{}, rows, {}], a multiple of 8",
           to_string(l.w_uk),
           to_string(l.w_uv),
           l.q_heads,
           l.v_dim);
}

void check(const char* what, const TensorView& t, int64_t tokens, int64_t heads, int64_t dim) {
  SE_CHECK(t.rank == 3 && t.dtype == DType::kF32 && t.shape[0] == tokens && t.shape[1] == heads &&
               t.shape[2] == dim && t.stride[2] == 4,
           "{} {}: expected f32 [{}, {}, {}]",
           what,
           to_string(t),
           tokens,
           heads,
           dim);
}

int64_t floats(int64_t bytes) { return bytes / int64_t(sizeof(float)); }

}  // namespace

void absorb_queries(const LayerKv& l, const TensorView& q, const TensorView& out, Stream& stream) {
  check_layer(l);
  const int64_t tokens = q.shape[0], nope = l.w_uk.shape[1], rope = l.k_dim - l.v_dim;
  check("q", q, tokens, l.q_heads, nope + rope);
  check("absorbed q", out, tokens, l.q_heads, l.k_dim);
  const AttentionCore& core = cpu::attention_core();
  stream.pool().run(tokens * l.q_heads, [&](int64_t item, int) {
    const int64_t t = item / l.q_heads, h = item % l.q_heads;
    const HeadMatrix w(l.w_uk, h);
    const float* from = q.at<float>(t, h);
    float* to = out.at<float>(t, h);
    std::memset(to, 0, size_t(l.v_dim) * sizeof(float));
    const void* rows[kKeyBlock];
    for (int64_t i = 0; i < nope; i += kKeyBlock) {
      const int n = w.block(i, rows);
      core.add_rows(from + i, rows, w.type, n, l.v_dim, to);
    }
    std::memcpy(to + l.v_dim, from + nope, size_t(rope) * sizeof(float));
  });
}

void expand_keys(
    const LayerKv& l, const TensorView& keys, const TensorView& k, const TensorView& v, Stream& stream) {
  check_layer(l);
  const int64_t n = keys.shape[0], nope = l.w_uk.shape[1], rope = l.k_dim - l.v_dim;
  SE_CHECK(keys.rank == 2 && keys.dtype == DType::kF32 && keys.shape[1] == l.k_dim && keys.stride[1] == 4,
           "latent keys {}: expected f32 [n, {}]",
           to_string(keys),
           l.k_dim);
  check("expanded k", k, n, l.q_heads, nope + rope);
  check("expanded v", v, n, l.q_heads, l.w_uv.shape[1]);
  const AttentionCore& core = cpu::attention_core();
  const int64_t tiles = (n + kKeyBlock - 1) / kKeyBlock;
  stream.pool().run(tiles * l.q_heads, [&](int64_t item, int) {
    const int64_t h = item % l.q_heads, at = item / l.q_heads * kKeyBlock;
    const int rows = int(std::min<int64_t>(kKeyBlock, n - at));
    const float* c = keys.at<float>(at);
    multiply(core, {l.w_uk, h}, c, floats(keys.stride[0]), rows, k.at<float>(at, h), floats(k.stride[0]));
    multiply(core, {l.w_uv, h}, c, floats(keys.stride[0]), rows, v.at<float>(at, h), floats(v.stride[0]));
    for (int r = 0; r < rows; ++r)
      std::memcpy(
          k.at<float>(at + r, h, nope), keys.at<float>(at + r, l.v_dim), size_t(rope) * sizeof(float));
  });
}

void latent_outputs(const LayerKv& l, const TensorView& o, const TensorView& out, Stream& stream) {
  check_layer(l);
  const int64_t tokens = o.shape[0];
  check("latent out", o, tokens, l.q_heads, l.v_dim);
  check("out", out, tokens, l.q_heads, l.w_uv.shape[1]);
  const AttentionCore& core = cpu::attention_core();
  const int64_t tiles = (tokens + kKeyBlock - 1) / kKeyBlock;
  stream.pool().run(tiles * l.q_heads, [&](int64_t item, int) {
    const int64_t h = item % l.q_heads, at = item / l.q_heads * kKeyBlock;
    const int rows = int(std::min<int64_t>(kKeyBlock, tokens - at));
    multiply(core,
             {l.w_uv, h},
             o.at<float>(at, h),
             floats(o.stride[0]),
             rows,
             out.at<float>(at, h),
             floats(out.stride[0]));
  });
}

int64_t expands_from(const LayerKv& l) {
  const int64_t expansion = (l.w_uk.shape[1] + l.w_uv.shape[1]) * l.v_dim;
  const int64_t saved = l.k_dim + l.v_dim - l.q_dim() - l.out_dim();
  return saved > 0 ? (expansion + saved - 1) / saved : std::numeric_limits<int64_t>::max();
}

}  // namespace se
