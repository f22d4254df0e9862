#include "kernels/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/rng.h"
#include "device/cpu/isa.h"
#include "device/cpu/thread_pool.h"
#include "kernels/elementwise/elementwise_routines.h"

namespace se {
namespace {

constexpr float kEps = std::numeric_limits<float>::epsilon();

std::vector<float> normals(int64_t n, float scale, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = rng.normal() * scale;
  return v;
}

// exp errs by 1.5 eps of series and steps plus 1 eps of the argument's rest; 1 + exp, the quotient and the
// product round once each: 4 eps in all. Where exp(-z) passes e^88 the result is below 1e-36 and only that is
// asked.
TEST(SiluMul, IsWithinTheDerivedBoundOfTheFormulaInDouble) {
  for (float z = -120; z < 120; z += 0.0137f) {
    const float up = 1.5f;
    float out;
    (cpu::isa() >= cpu::Isa::kAvx2 ? elementwise::silu_mul_avx2 : elementwise::silu_mul_ref)(
        &z, &up, 1, &out);
    const double want = double(z) / (1 + std::exp(-double(z))) * up;
    ASSERT_NEAR(out, want, 4 * kEps * std::abs(want) + 1e-35) << "z = " << z;
  }
}

// w rounds four times by half an eps (square, fused step, constants, product): its error moves exp(-w) by 2
// eps |w|, and the result by exp(-w) / (1 + exp(-w)) of that; the rest as above.
TEST(GeluTanhMul, IsWithinTheDerivedBoundOfTheFormulaInDouble) {
  for (float z = -20; z < 20; z += 0.00137f) {
    const float up = 1.5f;
    float out;
    (cpu::isa() >= cpu::Isa::kAvx2 ? elementwise::gelu_tanh_mul_avx2 : elementwise::gelu_tanh_mul_ref)(
        &z, &up, 1, &out);
    const double w = 2 * std::sqrt(2 / M_PI) * (double(z) + 0.044715 * std::pow(double(z), 3));
    const double want = double(z) / (1 + std::exp(-w)) * up;
    const double relative = 4 * kEps + 2 * kEps * std::abs(w) / (1 + std::exp(w));
    ASSERT_NEAR(out, want, relative * std::abs(want) + 1e-35) << "z = " << z;
    const double formula =
        0.5 * double(z) *
        (1 + std::tanh(std::sqrt(2 / M_PI) * (double(z) + 0.044715 * std::pow(double(z), 3)))) * up;
    ASSERT_NEAR(want, formula, 1e-14) << "z = " << z;
  }
}

TEST(GatedMul, EveryInstructionSetGivesTheSameBits) {
  if (cpu::best_isa() < cpu::Isa::kAvx2) GTEST_SKIP() << "no AVX2";
  for (int64_t n : {1, 7, 8, 9, 1003}) {
    for (float scale : {1e-3f, 1.f, 30.f, 1e4f}) {
      const auto z = normals(n, scale, 3), up = normals(n, 1, 4);
      const auto same = [&](const char* op, elementwise::BinaryFn ref, elementwise::BinaryFn fast) {
        std::vector<float> a(z.size()), b(z.size());
        ref(z.data(), up.data(), n, a.data());
        fast(z.data(), up.data(), n, b.data());
        EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * 4), 0)
            << op << ", n " << n << " scale " << scale;
      };
      same("silu avx2", elementwise::silu_mul_ref, elementwise::silu_mul_avx2);
      same("gelu avx2", elementwise::gelu_tanh_mul_ref, elementwise::gelu_tanh_mul_avx2);
      same("add avx2", elementwise::add_ref, elementwise::add_avx2);
      if (cpu::best_isa() < cpu::Isa::kAvx512) continue;
      same("silu avx512", elementwise::silu_mul_ref, elementwise::silu_mul_avx512);
      same("gelu avx512", elementwise::gelu_tanh_mul_ref, elementwise::gelu_tanh_mul_avx512);
      same("add avx512", elementwise::add_ref, elementwise::add_avx512);
    }
  }
}

TEST(GatedMul, InfinityAndNanAreNotHidden) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float z[] = {inf, nan, 0}, up[] = {1, 1, 1};
  std::vector<elementwise::BinaryFn> all = {elementwise::silu_mul_ref, elementwise::gelu_tanh_mul_ref};
  if (cpu::best_isa() >= cpu::Isa::kAvx2)
    all.insert(all.end(), {elementwise::silu_mul_avx2, elementwise::gelu_tanh_mul_avx2});
  if (cpu::best_isa() >= cpu::Isa::kAvx512)
    all.insert(all.end(), {elementwise::silu_mul_avx512, elementwise::gelu_tanh_mul_avx512});
  for (const auto fn : all) {
    float out[3];
    fn(z, up, 3, out);
    EXPECT_EQ(out[0], inf);
    EXPECT_TRUE(std::isnan(out[1]));
    EXPECT_EQ(out[2], 0);
  }
}

TEST(Elementwise, AnyThreadCountInPlaceOrNotGivesTheSameBits) {
  const int64_t n = 50001;
  const auto x = normals(n, 2, 7), y = normals(n, 2, 8);
  std::vector<float> sum(x.size());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = x[i] + y[i];
  std::vector<float> first;
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    Stream stream(pool);
    auto a = x, b = y;
    const TensorView va = TensorView::of(a.data(), DType::kF32, {n, 1}),
                     vb = TensorView::of(b.data(), DType::kF32, {n, 1});
    add(va, vb, va, stream);
    EXPECT_EQ(a, sum);
    a = x;
    silu_mul(va, vb, vb, stream);
    gelu_tanh_mul(va, vb, vb, stream);
    if (threads == 1) first = b;
    EXPECT_EQ(b, first);
  }
}

}  // namespace
}  // namespace se
