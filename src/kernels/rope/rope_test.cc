#include "kernels/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "device/cpu/thread_pool.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace se {
namespace {

constexpr float kEps = std::numeric_limits<float>::epsilon();

struct Case {
  int64_t tokens, q_heads, kv_heads, dim;
  int rotary;
  bool interleaved;
};

std::vector<float> normals(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = rng.normal();
  return v;
}

TensorView view(std::vector<float>& v, std::initializer_list<int64_t> shape) {
  return TensorView::of(v.data(), DType::kF32, shape);
}

// The formula of spec/models.md 2.3 with the f32 angle, the rest in double. The engine's cos and sin are
// rounded to f32 (half an ulp), as are two products and a sum: |err| <= 2 eps (|u| + |v|).
void expect_rotated(const Case& c,
                    const std::vector<float>& before,
                    const std::vector<float>& after,
                    int64_t heads,
                    const std::vector<int32_t>& pos,
                    const std::vector<float>& f) {
  const int64_t pairs = c.rotary / 2;
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const float *x = &before[size_t((t * heads + h) * c.dim)], *y = &after[size_t((t * heads + h) * c.dim)];
      for (int64_t i = 0; i < pairs; ++i) {
        const int64_t iu = c.interleaved ? 2 * i : i, iv = c.interleaved ? 2 * i + 1 : i + pairs;
        const double a = float(pos[size_t(t)]) * f[size_t(i)], u = x[iu], v = x[iv];
        const double bound = 2 * kEps * (std::abs(u) + std::abs(v));
        ASSERT_NEAR(y[iu], u * std::cos(a) - v * std::sin(a), bound)
            << "position " << pos[size_t(t)] << " pair " << i;
        ASSERT_NEAR(y[iv], v * std::cos(a) + u * std::sin(a), bound)
            << "position " << pos[size_t(t)] << " pair " << i;
      }
      for (int64_t d = c.rotary; d < c.dim; ++d) ASSERT_EQ(y[d], x[d]) << "channel " << d << " must pass";
    }
  }
}

TEST(Rope, RotatesBothPairingsAndPartialWidthsUpToLongPositions) {
  for (const Case& c : {Case{40, 9, 3, 64, 64, true},
                        Case{17, 4, 4, 64, 64, false},
                        Case{9, 2, 1, 128, 64, false},
                        Case{9, 2, 1, 128, 2, true},
                        Case{1, 1, 1, 256, 256, false}}) {
    auto q = normals(c.tokens * c.q_heads * c.dim, 1), k = normals(c.tokens * c.kv_heads * c.dim, 2);
    const auto q0 = q, k0 = k;
    auto f = rope_frequencies(c.rotary, 100000);
    std::vector<int32_t> pos;
    for (int64_t t = 0; t < c.tokens; ++t) pos.push_back(int32_t(t < 8 ? t : 131072 - 4099 * (t - 8)));
    QkTransform transform;
    transform.rope = view(f, {c.rotary / 2});
    transform.interleaved = c.interleaved;
    ThreadPool pool(2);
    Stream stream(pool);
    qk_norm_rope(view(q, {c.tokens, c.q_heads, c.dim}),
                 view(k, {c.tokens, c.kv_heads, c.dim}),
                 transform,
                 TensorView::of(pos.data(), DType::kI32, {c.tokens}),
                 stream);
    expect_rotated(c, q0, q, c.q_heads, pos, f);
    expect_rotated(c, k0, k, c.kv_heads, pos, f);
  }
}

TEST(Rope, NormsPerHeadBeforeTurningAndWithoutFrequenciesOnlyNorms) {
  const int64_t tokens = 3, heads = 2, dim = 32;
  auto q = normals(tokens * heads * dim, 3), k = normals(tokens * heads * dim, 4), wq = normals(dim, 5),
       wk = normals(dim, 6);
  auto normed_q = q, normed_k = k;
  ThreadPool pool(1);
  Stream stream(pool);
  rms_norm(view(normed_q, {tokens * heads, dim}),
           view(wq, {dim}),
           1e-6f,
           view(normed_q, {tokens * heads, dim}),
           stream);
  rms_norm(view(normed_k, {tokens * heads, dim}),
           view(wk, {dim}),
           1e-6f,
           view(normed_k, {tokens * heads, dim}),
           stream);
  std::vector<int32_t> pos{0, 5, 70000};
  const TensorView positions = TensorView::of(pos.data(), DType::kI32, {tokens});
  QkTransform t;
  t.q_norm = view(wq, {dim}), t.k_norm = view(wk, {dim}), t.eps = 1e-6f;
  auto only_q = q, only_k = k;
  qk_norm_rope(view(only_q, {tokens, heads, dim}), view(only_k, {tokens, heads, dim}), t, positions, stream);
  EXPECT_EQ(only_q, normed_q);
  EXPECT_EQ(only_k, normed_k);
  auto f = rope_frequencies(dim, 10000);
  t.rope = view(f, {dim / 2});
  qk_norm_rope(view(q, {tokens, heads, dim}), view(k, {tokens, heads, dim}), t, positions, stream);
  const Case c{tokens, heads, heads, dim, int(dim), false};
  expect_rotated(c, normed_q, q, heads, pos, f);
  expect_rotated(c, normed_k, k, heads, pos, f);
}

// What rotates is a multiple of what it was without; the rest of the head is not touched.
TEST(Rope, AmplitudeScalesWhatRotates) {
  const int64_t tokens = 2, dim = 32;
  auto f = rope_frequencies(16, 10000);
  std::vector<int32_t> pos{3, 41};
  const TensorView positions = TensorView::of(pos.data(), DType::kI32, {tokens});
  auto plain = normals(tokens * dim, 3), scaled = plain, k = plain;
  ThreadPool pool(1);
  Stream stream(pool);
  QkTransform t;
  t.rope = view(f, {8});
  qk_norm_rope(view(plain, {tokens, 1, dim}), view(k, {tokens, 1, dim}), t, positions, stream);
  t.amplitude = 2;
  qk_norm_rope(view(scaled, {tokens, 1, dim}), view(k, {tokens, 1, dim}), t, positions, stream);
  for (int64_t i = 0; i < tokens * dim; ++i)
    EXPECT_EQ(scaled[size_t(i)], plain[size_t(i)] * (i % dim < 16 ? 2 : 1)) << i;
}

TEST(Rope, ATokenDependsOnItselfAloneWhateverTheThreads) {
  const int64_t tokens = 33, dim = 64;
  auto f = rope_frequencies(int(dim), 10000);
  std::vector<int32_t> pos;
  for (int32_t t = 0; t < tokens; ++t) pos.push_back(t * 37);
  QkTransform t;
  t.rope = view(f, {dim / 2});
  const auto q0 = normals(tokens * dim, 9);
  std::vector<std::vector<float>> runs;
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    Stream stream(pool);
    auto q = q0, k = q0;
    qk_norm_rope(view(q, {tokens, 1, dim}),
                 view(k, {tokens, 1, dim}),
                 t,
                 TensorView::of(pos.data(), DType::kI32, {tokens}),
                 stream);
    runs.push_back(q);
    auto one = q0;
    const TensorView row = view(one, {tokens, 1, dim}).slice(20, 21);
    std::vector<float> other(size_t(dim), 0.f);
    qk_norm_rope(row, view(other, {1, 1, dim}), t, TensorView::of(&pos[20], DType::kI32, {1}), stream);
    for (int64_t d = 0; d < dim; ++d) EXPECT_EQ(one[size_t(20 * dim + d)], q[size_t(20 * dim + d)]);
  }
  EXPECT_EQ(runs[0], runs[1]);
}

}  // namespace
}  // namespace se
