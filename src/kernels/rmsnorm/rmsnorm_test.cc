#include "kernels/rmsnorm/rmsnorm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "device/cpu/isa.h"
#include "device/cpu/thread_pool.h"
#include "kernels/rmsnorm/rmsnorm_routines.h"

namespace se {
namespace {

constexpr float kEps = std::numeric_limits<float>::epsilon();

std::vector<float> normals(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = rng.normal();
  return v;
}

// The sum of dim squares in 16 lanes errs by at most (dim / 16 + 4) eps relative, the root halves that; the
// division, root, reciprocal and two products add half an ulp each.
TEST(RmsNorm, IsWithinTheDerivedBoundOfTheFormulaInDouble) {
  for (int64_t dim : {1, 2, 7, 8, 15, 16, 17, 64, 576, 1000}) {
    const auto x = normals(dim, 1), w = normals(dim, 2);
    double sum = 0;
    for (float v : x) sum += double(v) * v;
    const double scale = 1 / std::sqrt(sum / double(dim) + 1e-5);
    std::vector<float> out(x.size());
    rmsnorm::row()(x.data(), w.data(), 1e-5f, dim, out.data());
    const double c = (double(dim) / 16 + 4) / 2 + 3;
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = x[i] * scale * w[i];
      EXPECT_NEAR(out[i], want, c * kEps * std::abs(want)) << "dim " << dim;
    }
  }
}

TEST(RmsNorm, EveryInstructionSetGivesTheSameBits) {
  if (cpu::best_isa() < cpu::Isa::kAvx2) GTEST_SKIP() << "no AVX2";
  for (int64_t dim = 1; dim < 80; ++dim) {
    const auto x = normals(dim, uint64_t(dim)), w = normals(dim, 99);
    std::vector<float> a(x.size()), b(x.size());
    rmsnorm::row_ref(x.data(), w.data(), 1e-6f, dim, a.data());
    rmsnorm::row_avx2(x.data(), w.data(), 1e-6f, dim, b.data());
    ASSERT_EQ(a, b) << "dim " << dim;
  }
}

TEST(RmsNorm, ARowDependsNeitherOnItsNeighboursNorOnThreadsAndMayBeInPlace) {
  const int64_t tokens = 37, dim = 100;
  auto x = normals(tokens * dim, 5);
  auto w = normals(dim, 6);
  std::vector<float> alone(x.size());
  for (int64_t t = 0; t < tokens; ++t)
    rmsnorm::row()(x.data() + t * dim, w.data(), 1e-5f, dim, alone.data() + t * dim);
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    Stream stream(pool);
    auto y = x;
    const TensorView v = TensorView::of(y.data(), DType::kF32, {tokens, dim});
    rms_norm(v, TensorView::of(w.data(), DType::kF32, {dim}), 1e-5f, v, stream);
    EXPECT_EQ(y, alone) << threads << " threads";
  }
}

TEST(RmsNorm, RowsMayBePartsOfWiderOnes) {
  const int64_t tokens = 5, dim = 40, wide = 56;
  auto x = normals(tokens * wide, 5);
  const auto before = x;
  auto w = normals(dim, 6);
  ThreadPool pool(2);
  Stream stream(pool);
  TensorView part = TensorView::of(x.data(), DType::kF32, {tokens, wide});
  part.shape[1] = dim;
  rms_norm(part, TensorView::of(w.data(), DType::kF32, {dim}), 1e-5f, part, stream);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<float> want(before.begin() + t * wide, before.begin() + (t + 1) * wide);
    rmsnorm::row()(want.data(), w.data(), 1e-5f, dim, want.data());
    EXPECT_EQ(std::vector<float>(x.begin() + t * wide, x.begin() + (t + 1) * wide), want) << t;
  }
}

}  // namespace
}  // namespace se
