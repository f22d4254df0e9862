// Attention against its slow twin: every dtype, dimension, group and shape of table.
#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "device/cpu/isa.h"
#include "kernels/attention/attention_ref.h"
#include "kernels/attention/attention_testing.h"
#include "kernels/attention/core.h"

namespace se {
namespace {

using namespace attention_testing;  // NOLINT: a test's own helpers

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
  int q_heads, kv_heads, k_dim, v_dim;
  DType dtype;
  cpu::Isa isa;
};

class Attention : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().isa > cpu::best_isa()) GTEST_SKIP() << "no " << cpu::to_string(GetParam().isa);
    cpu::set_isa_for_test(GetParam().isa);
    const Case& c = GetParam();
    shape_.q_heads = c.q_heads, shape_.kv_heads = c.kv_heads;
    shape_.k_dim = c.k_dim, shape_.v_dim = c.v_dim, shape_.dtype = c.dtype;
  }
  void TearDown() override { cpu::set_isa_for_test(cpu::best_isa()); }

  // |got - want| <= c eps (1 + the size of what was summed); values are N(0, 1), weights sum to 1.
  static void expect_near(const std::vector<float>& got, const std::vector<float>& want, float tolerance) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::isinf(want[i]))
        ASSERT_EQ(got[i], want[i]) << i;
      else
        ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::abs(want[i]))) << i;
    }
  }

  Shape shape_;
  ThreadPool pool_{2};
  Stream stream_{pool_};
};

// Decode rows and chunks over tables with odd runs, empty rows, splits that cut runs.
void add_rows(Scene& scene, const Tokens& x) {
  scene.add_row(x, 0, 1, 64);
  scene.add_row(x, 1, 1, 64);
  scene.add_row(x, 15, 2, 64, {7, 1, 3});
  scene.add_row(x, 16, 1, 32);
  scene.add_row(x, 17, 5, 0);
  scene.add_row(x, 150, 1, 64, {16, 5, 16, 16, 2, 1, 1, 16});
  scene.add_row(x, 150, 40, 64);
  scene.add_row(x, 0, 70, 32);
  scene.add_row(x, 100, 0, 32);
}

TEST_P(Attention, EqualsTheSlowTwin) {
  const Tokens x(shape_, 220, 1);
  for (bool with_present : {true, false}) {
    Scene scene(shape_, 3, 1);
    add_rows(scene, x);
    scene.build(with_present);
    ref::attend(scene.args(), &scene.part(), shape_.k_dim, shape_.v_dim, shape_.kv_heads, nullptr);
    const std::vector<float> out = scene.out(), lse = scene.lse();
    scene.build(with_present);
    attend_plain(scene.args(), scene.part(), stream_);
    expect_near(scene.out(), out, 4e-6f);
    expect_near(scene.lse(), lse, 2e-6f);
  }
}

TEST_P(Attention, ALoaderGivesTheBitsOfPlainPlanes) {
  const Tokens x(shape_, 220, 2);
  Scene scene(shape_, 2, 1);
  add_rows(scene, x);
  scene.build();
  attend_plain(scene.args(), scene.part(), stream_);
  const std::vector<float> out = scene.out(), lse = scene.lse();
  scene.build();
  cpu::attend_tiles(
      scene.args(), scene.part(), shape_.k_dim, shape_.v_dim, shape_.kv_heads, load_plain, stream_);
  EXPECT_EQ(std::memcmp(out.data(), scene.out().data(), out.size() * 4), 0);
  EXPECT_EQ(std::memcmp(lse.data(), scene.lse().data(), lse.size() * 4), 0);
}

TEST_P(Attention, PartAndPresentMergeToTheWhole) {
  const Tokens x(shape_, 220, 3);
  Scene scene(shape_);
  add_rows(scene, x);
  scene.build();
  ref::attend(scene.args(), &scene.part(), shape_.k_dim, shape_.v_dim, shape_.kv_heads, nullptr);
  const std::vector<float> out = scene.out(), lse = scene.lse();

  scene.build(false);
  attend_plain(scene.args(), scene.part(), stream_);
  std::vector<float> past = scene.out(), past_lse = scene.lse();
  scene.build();
  attend_present(scene.args(), stream_);
  AttendArgs& a = scene.args();
  const TensorView past_view =
      TensorView::of(past.data(), DType::kF32, {a.out.shape[0], a.out.shape[1], a.out.shape[2]});
  const TensorView past_lse_view =
      TensorView::of(past_lse.data(), DType::kF32, {a.lse.shape[0], a.lse.shape[1]});
  merge_attention(scene.step(), a.list, a.out, a.lse, past_view, past_lse_view, stream_);
  expect_near(past, out, 4e-6f);
  expect_near(past_lse, lse, 2e-6f);
}

TEST_P(Attention, LogitsEqualTheSlowTwinAndLeaveTheRestAlone) {
  const Tokens x(shape_, 220, 4);
  Scene scene(shape_, 2, 1);
  add_rows(scene, x);
  scene.build();
  const int64_t cap = 400, n = scene.tokens();
  std::vector<float> got(size_t(n * shape_.q_heads * cap), -77.f), want = got;
  for (bool present : {false, true}) {
    scene.args().logits = TensorView::of(want.data(), DType::kF32, {n, shape_.q_heads, cap});
    ref::logits(scene.args(), present ? nullptr : &scene.part(), shape_.k_dim, shape_.kv_heads, nullptr);
    scene.args().logits = TensorView::of(got.data(), DType::kF32, {n, shape_.q_heads, cap});
    if (present)
      logits_present(scene.args(), stream_);
    else
      logits_plain(scene.args(), scene.part(), stream_);
    for (size_t i = 0; i < got.size(); ++i) {
      if (want[i] == -77.f)
        ASSERT_EQ(got[i], want[i]) << i;
      else
        ASSERT_NEAR(got[i], want[i], 1e-4f) << i;  // 128 products of N(0,1) x N(0,1.5)
    }
    std::vector<float> coded(got.size(), -77.f);
    if (present) continue;
    scene.args().logits = TensorView::of(coded.data(), DType::kF32, {n, shape_.q_heads, cap});
    cpu::logits_tiles(scene.args(), scene.part(), shape_.k_dim, shape_.kv_heads, load_plain, stream_);
    EXPECT_EQ(coded, got);
  }
}

TEST_P(Attention, MergeEqualsTheSlowTwinAndEmptySidesChangeNoBit) {
  const Tokens x(shape_, 40, 5);
  Scene scene(shape_), mirror(shape_);
  for (Scene* s : {&scene, &mirror}) {
    for (int i = 0; i < 4; ++i) s->add_row(x, 0, 3, 0);
    s->build();
  }
  Rng rng(6);
  const auto fill = [&](std::vector<float>& v) {
    for (float& e : v) e = rng.normal() * 3;
  };
  fill(scene.out()), fill(scene.lse()), fill(mirror.out()), fill(mirror.lse());
  scene.lse()[3] = -kInf, mirror.lse()[7] = -kInf, scene.lse()[9] = mirror.lse()[9] = -kInf;
  const std::vector<float> out = scene.out(), lse = scene.lse();
  merge_attention(scene.step(),
                  scene.args().list,
                  mirror.args().out,
                  mirror.args().lse,
                  scene.args().out,
                  scene.args().lse,
                  stream_);
  const std::vector<float> got = scene.out(), got_lse = scene.lse();
  const auto row = [&](const std::vector<float>& v, size_t i) {
    return std::vector<float>(v.begin() + long(i) * shape_.v_dim, v.begin() + long(i + 1) * shape_.v_dim);
  };
  EXPECT_EQ(row(got, 3), row(mirror.out(), 3));
  EXPECT_EQ(got_lse[3], mirror.lse()[3]);
  EXPECT_EQ(row(got, 7), row(out, 7));
  EXPECT_EQ(got_lse[7], lse[7]);
  EXPECT_EQ(row(got, 9), row(out, 9));
  EXPECT_EQ(got_lse[9], -kInf);
  scene.out() = out, scene.lse() = lse;
  ref::merge(scene.step(),
             scene.args().list,
             mirror.args().out,
             mirror.args().lse,
             scene.args().out,
             scene.args().lse);
  expect_near(got, scene.out(), 2e-6f);
  expect_near(got_lse, scene.lse(), 2e-6f);
}

// Weights of a block whose largest score is 0 are exponentials: within 2 ulp, 1 at 0, 0 far below.
TEST_P(Attention, TheExponentialIsGoodToTwoUlp) {
  const cpu::AttentionCore& core = cpu::attention_core();
  Rng rng(8);
  std::vector<float> value(cpu::kKeyBlock * 8, 1.f), acc(8, 0.f);
  std::vector<const void*> rows;
  for (int j = 0; j < cpu::kKeyBlock; ++j) rows.push_back(&value[size_t(8 * j)]);
  const int32_t seen = cpu::kKeyBlock;
  double worst = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<float> x(cpu::kKeyBlock, 0.f), w;
    for (size_t j = 1; j < x.size(); ++j)
      x[j] = -float(rng.uniform()) * (i % 3 == 0 ? 87.f : i % 3 == 1 ? 2.f : 0.01f);
    x[7] = -kInf, x[8] = -87.5f;
    float m = -kInf, l = 0;
    w = x;
    core.absorb(w.data(),
                1.f,
                nullptr,
                &seen,
                1,
                rows.data(),
                cpu::RowType::kF32,
                8,
                {&m, &l, acc.data(), 8},
                nullptr);
    EXPECT_EQ(w[0], 1.f);
    EXPECT_EQ(w[7], 0.f);
    EXPECT_EQ(w[8], 0.f);
    for (size_t j = 0; j < x.size(); ++j) {
      if (x[j] < -87.f) continue;
      const double want = std::exp(double(x[j]));
      const float ulp = std::nextafter(float(want), 2.f) - float(want);
      worst = std::max(worst, std::abs(double(w[j]) - want) / double(ulp));
    }
  }
  EXPECT_LE(worst, 2.0);
}

TEST_P(Attention, RowsWithNothingToSeeAreEmpty) {
  const Tokens x(shape_, 4, 7);
  Scene scene(shape_);
  scene.add_row(x, 0, 2, 32);
  scene.add_row(x, 1, 1, 32);
  scene.build(false);
  attend_plain(scene.args(), scene.part(), stream_);
  for (size_t i = 0; i < size_t(2 * shape_.q_heads); ++i) EXPECT_EQ(scene.lse()[i], -kInf);
  for (size_t i = 0; i < size_t(2 * shape_.q_heads * shape_.v_dim); ++i) EXPECT_EQ(scene.out()[i], 0);
  for (size_t i = size_t(2 * shape_.q_heads); i < scene.lse().size(); ++i)
    EXPECT_TRUE(std::isfinite(scene.lse()[i]));
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return std::string(cpu::to_string(c.isa)) + "_" + to_string(c.dtype) + "_" + std::to_string(c.q_heads) +
         "of" + std::to_string(c.kv_heads) + "_" + std::to_string(c.k_dim) + "_" + std::to_string(c.v_dim);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAmx}) {
    all.push_back({9, 3, 64, 64, DType::kF16, isa});
    all.push_back({3, 3, 80, 80, DType::kF16, isa});
    all.push_back({8, 2, 128, 128, DType::kBF16, isa});
    all.push_back({10, 2, 64, 128, DType::kF32, isa});
    all.push_back({2, 1, 100, 36, DType::kF16, isa});  // dims that are not whole lanes
    all.push_back({7, 1, 24, 8, DType::kBF16, isa});
    all.push_back({3, 1, 20, 20, DType::kF32, isa});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Shapes, Attention, ::testing::ValuesIn(cases()), name_of);

}  // namespace
}  // namespace se
