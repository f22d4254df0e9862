// Attention against the NumPy oracle (attention_oracle.py): past in one part and in two, and logits.
#include <gtest/gtest.h>

#include <cmath>

#include "base/npy.h"
#include "device/cpu/isa.h"
#include "kernels/attention/attention_testing.h"

namespace se {
namespace {

using namespace attention_testing;  // NOLINT: a test's own helpers

struct Golden {
  explicit Golden(const std::string& case_name) : name(case_name) {
    const auto sizes = load("sizes").as<int>();
    shape.q_heads = sizes[0], shape.kv_heads = sizes[1], shape.unit = sizes[2], split = sizes[3],
    part = sizes[4];
    shape.k_dim = int(load("k").shape[2]), shape.v_dim = int(load("v").shape[2]);
    runs = load("runs").as<int>();
    past = load("k").shape[0], fresh = load("k_new").shape[0];
    x.n = past + fresh;
    for (const char* field : {"k", "k_new"}) append(x.k, load(field).as<float>());
    for (const char* field : {"v", "v_new"}) append(x.v, load(field).as<float>());
    x.q.assign(size_t(past * shape.q_heads * shape.k_dim), 0.f);  // the past does not query
    append(x.q, load("q").as<float>());
  }
  Npy load(const std::string& field) const {
    return Npy::load("src/kernels/attention/goldens/" + name + "_" + field + ".npy");
  }
  static void append(std::vector<float>& to, const std::vector<float>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }

  std::string name;
  Shape shape;
  int split = 0, part = 0;
  std::vector<int> runs;
  int64_t past = 0, fresh = 0;
  Tokens x{Shape{}, 0, 0};
};

void expect_near(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i]))
      ASSERT_EQ(got[i], want[i]) << what << " " << i;
    else if (std::isnan(want[i]))
      ASSERT_TRUE(std::isnan(got[i])) << what << " " << i;
    else
      ASSERT_NEAR(got[i], want[i], 4e-6f * (1 + std::abs(want[i]))) << what << " " << i;
  }
}

class AttentionGolden : public ::testing::TestWithParam<std::tuple<const char*, cpu::Isa>> {
 protected:
  void SetUp() override {
    if (const cpu::Isa isa = std::get<1>(GetParam()); isa > cpu::best_isa())
      GTEST_SKIP() << "no " << cpu::to_string(isa);
    cpu::set_isa_for_test(std::get<1>(GetParam()));
  }
  void TearDown() override { cpu::set_isa_for_test(cpu::best_isa()); }
  ThreadPool pool_{2};
  Stream stream_{pool_};
};

TEST_P(AttentionGolden, OnePartWithThePresent) {
  const Golden g(std::get<0>(GetParam()));
  Scene scene(g.shape);
  scene.add_row(g.x, g.past, g.fresh, g.split, g.runs);
  scene.build();
  attend_plain(scene.args(), scene.part(), stream_);
  expect_near(scene.out(), g.load("out").as<float>(), "out");
  expect_near(scene.lse(), g.load("lse").as<float>(), "lse");
}

TEST_P(AttentionGolden, TwoPartsMergedAndThePresent) {
  const Golden g(std::get<0>(GetParam()));
  Scene scene(g.shape);
  scene.add_row(g.x, g.past, g.fresh, g.split, g.runs);
  scene.build(false);
  const int32_t all = int32_t(g.runs.size());
  const auto part_lse = g.load("part_lse").as<float>();
  std::vector<float> out, lse;
  for (int p = 0; p < 2; ++p) {
    int32_t count = p == 0 ? g.part : all - g.part;
    int64_t start = p == 0 ? 0 : g.part;
    scene.build(false);
    scene.part().index.counts = TensorView::of(&count, DType::kI32, {1});
    scene.part().index.start = TensorView::of(&start, DType::kI64, {1});
    attend_plain(scene.args(), scene.part(), stream_);
    const auto begin = part_lse.begin() + p * long(scene.lse().size());
    expect_near(scene.lse(), {begin, begin + long(scene.lse().size())}, "part");
    const AttendArgs& a = scene.args();
    if (p == 0) {
      out = scene.out(), lse = scene.lse();
      continue;
    }
    const auto out_view =
        TensorView::of(out.data(), DType::kF32, {a.out.shape[0], a.out.shape[1], a.out.shape[2]});
    const auto lse_view = TensorView::of(lse.data(), DType::kF32, {a.lse.shape[0], a.lse.shape[1]});
    merge_attention(scene.step(), a.list, a.out, a.lse, out_view, lse_view, stream_);
    scene.build(true);
    attend_present(scene.args(), stream_);
    merge_attention(scene.step(), a.list, a.out, a.lse, out_view, lse_view, stream_);
  }
  expect_near(out, g.load("out").as<float>(), "out");
  expect_near(lse, g.load("lse").as<float>(), "lse");
}

TEST_P(AttentionGolden, LogitsByLinearPlace) {
  const Golden g(std::get<0>(GetParam()));
  Scene scene(g.shape);
  scene.add_row(g.x, g.past, g.fresh, g.split, g.runs);
  scene.build();
  const Npy want = g.load("logits");
  std::vector<float> got(size_t(want.numel()), NAN);
  scene.args().logits =
      TensorView::of(got.data(), DType::kF32, {want.shape[0], want.shape[1], want.shape[2]});
  logits_plain(scene.args(), scene.part(), stream_);
  expect_near(got, want.as<float>(), "logits");
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<const char*, cpu::Isa>>& info) {
  return std::string(std::get<0>(info.param)) + "_" + cpu::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    AttentionGolden,
    ::testing::Combine(
        ::testing::Values("group3_d64", "group1_d80", "group3_d128", "group2_k48_v32"),
        ::testing::Values(cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAmx)),
    name_of);

}  // namespace
}  // namespace se
