// Prompts over chosen blocks against the slow twin; all blocks give the bits of the dense pass.
#include <gtest/gtest.h>

#include <cmath>

#include "device/cpu/isa.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_ref.h"
#include "kernels/attention/attention_testing.h"
#include "kernels/attention/core.h"

namespace se {
namespace {

using namespace attention_testing;  // NOLINT: a test's own helpers

struct Case {
  int q_heads, kv_heads, dim, block;
  DType dtype;
  cpu::Isa isa;
};

// Lists for the rows of a scene: every block, or a third of them and the means of what is full and before.
struct Lists {
  std::vector<int64_t> first;
  std::vector<int32_t> counts, blocks, mean_counts, mean_blocks;
  std::vector<float> mean_k, mean_v;
  BlockList list;

  Lists(Scene& scene, std::span<const int64_t> past, int block, bool all, bool means) {
    const Shape& s = scene.shape();
    const AttendArgs& a = scene.args();
    const int64_t group = s.q_heads / s.kv_heads, rows = int64_t(past.size());
    list.block = block;
    const int32_t* start = a.rows->q_start.ptr<int32_t>();
    int64_t most = 1, items = 0;
    const auto tiles_of = [&](int64_t r) { return ((start[r + 1] - start[r]) * group + 127) / 128; };
    for (int64_t r = 0; r < rows; ++r) {
      most = std::max(most, (past[size_t(r)] + start[r + 1] - start[r] + block - 1) / block);
      first.push_back(items), items += tiles_of(r) * s.kv_heads;
    }
    counts.assign(size_t(items), 0), mean_counts = counts;
    blocks.assign(size_t(items * most), -1), mean_blocks = blocks;
    Rng rng(5);
    mean_k.resize(size_t(rows * s.kv_heads * most * s.k_dim)), mean_v.resize(mean_k.size());
    for (float& x : mean_k) x = rng.normal();
    for (float& x : mean_v) x = rng.normal();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < s.kv_heads; ++h) {
        for (int64_t t = 0; t < tiles_of(r); ++t) {
          const size_t item = size_t(first[size_t(r)] + h * tiles_of(r) + t);
          const int64_t n = start[r + 1] - start[r], p0 = past[size_t(r)] + t * 128 / group;
          const int64_t p1 = past[size_t(r)] + std::min(n - 1, (t * 128 + 127) / group);
          for (int64_t b = 0; b <= p1 / block; ++b) {
            const bool keep = all || (b + t + h) % 3 == 0 || b == p0 / block;
            const size_t at = item * size_t(most);
            if (keep)
              blocks[at + size_t(counts[item]++)] = int32_t(b);
            else if ((b + 1) * block <= p0)
              mean_blocks[at + size_t(mean_counts[item]++)] = int32_t(b);
          }
        }
      }
    }
    list.first = TensorView::of(first.data(), DType::kI64, {rows});
    list.counts = TensorView::of(counts.data(), DType::kI32, {items});
    list.blocks = TensorView::of(blocks.data(), DType::kI32, {items, most});
    if (!means) return;
    list.mean_counts = TensorView::of(mean_counts.data(), DType::kI32, {items});
    list.mean_blocks = TensorView::of(mean_blocks.data(), DType::kI32, {items, most});
    list.mean_k = TensorView::of(mean_k.data(), DType::kF32, {rows, s.kv_heads, most, s.k_dim});
    list.mean_v = TensorView::of(mean_v.data(), DType::kF32, {rows, s.kv_heads, most, s.v_dim});
  }
};

class Blocks : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    if (c.isa > cpu::best_isa()) GTEST_SKIP() << "no " << cpu::to_string(c.isa);
    cpu::set_isa_for_test(c.isa);
    shape_.q_heads = c.q_heads, shape_.kv_heads = c.kv_heads;
    shape_.k_dim = shape_.v_dim = c.dim, shape_.dtype = c.dtype;
  }
  void TearDown() override { cpu::set_isa_for_test(cpu::best_isa()); }

  // Prompts of odd lengths over pasts of odd lengths: the last tile short, blocks across past and present.
  static constexpr int64_t kPast[] = {0, 0, 0, 63, 64, 65, 130, 128, 1, 97};
  static constexpr int64_t kFresh[] = {1, 129, 0, 40, 64, 33, 131, 70, 20, 64};
  void add_rows(Scene& scene, const Tokens& x) {
    for (size_t i = 0; i < std::size(kPast); ++i) scene.add_row(x, kPast[i], kFresh[i], i % 3 == 0 ? 0 : 64);
  }

  Shape shape_;
  ThreadPool pool_{2};
  Stream stream_{pool_};
};

// The bound of the dense pass (attention_test.cc): values are N(0, 1), weights sum to 1.
TEST_P(Blocks, EqualTheSlowTwin) {
  const Tokens x(shape_, 270, 1);
  for (bool means : {false, true}) {
    Scene scene(shape_);
    add_rows(scene, x);
    scene.build();
    Lists lists(scene, kPast, GetParam().block, false, means);
    scene.args().blocks = &lists.list;
    ref::attend(scene.args(), &scene.part(), shape_.k_dim, shape_.v_dim, shape_.kv_heads, nullptr);
    const std::vector<float> out = scene.out(), lse = scene.lse();
    scene.build();
    attend_plain(scene.args(), scene.part(), stream_);
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(scene.out()[i], out[i], 6e-6f * (1 + std::abs(out[i]))) << i;
    for (size_t i = 0; i < lse.size(); ++i)
      ASSERT_NEAR(scene.lse()[i], lse[i], 3e-6f * (1 + std::abs(lse[i]))) << i;
  }
}

TEST_P(Blocks, AllOfThemGiveTheBitsOfTheDensePass) {
  const Tokens x(shape_, 270, 2);
  Scene scene(shape_);
  add_rows(scene, x);
  scene.build();
  attend_plain(scene.args(), scene.part(), stream_);
  const std::vector<float> out = scene.out(), lse = scene.lse();
  scene.build();
  Lists lists(scene, kPast, GetParam().block, true, true);
  scene.args().blocks = &lists.list;
  attend_plain(scene.args(), scene.part(), stream_);
  EXPECT_EQ(std::memcmp(out.data(), scene.out().data(), out.size() * 4), 0);
  EXPECT_EQ(std::memcmp(lse.data(), scene.lse().data(), lse.size() * 4), 0);
}

TEST_P(Blocks, ALoaderGivesTheBitsOfPlainPlanes) {
  const Tokens x(shape_, 270, 3);
  Scene scene(shape_);
  add_rows(scene, x);
  scene.build();
  Lists lists(scene, kPast, GetParam().block, false, true);
  scene.args().blocks = &lists.list;
  attend_plain(scene.args(), scene.part(), stream_);
  const std::vector<float> out = scene.out();
  scene.build();
  cpu::attend_tiles(
      scene.args(), scene.part(), shape_.k_dim, shape_.v_dim, shape_.kv_heads, load_plain, stream_);
  EXPECT_EQ(std::memcmp(out.data(), scene.out().data(), out.size() * 4), 0);
}

// methods-dynamic.md 6.4: blocks of two keys, 0 and 3 read; blocks 1 and 2 have one key each, twice, so that
// their means are exact and the whole is dense.
TEST(BlocksOfTwo, WorkedExampleF1) {
  Shape shape;
  shape.q_heads = shape.kv_heads = 1, shape.k_dim = shape.v_dim = 2, shape.dtype = DType::kF32;
  ThreadPool pool(1);
  Stream stream(pool);
  Tokens x(shape, 8, 1);
  x.k = {2, 0, 2, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 0, 1};
  x.v = {1, 0, 1, 0, 0, 1, 0, 1, 2, 2, 2, 2, 3, 0, 0, 3};
  x.q.assign(16, 0.f), x.q[12] = 2, x.q[15] = 2;
  for (bool means : {false, true}) {
    Scene scene(shape);
    scene.add_row(x, 6, 2, 0);
    scene.build();
    int64_t first = 0;
    int32_t kept_n = 2, kept[2] = {0, 3}, means_n = 2, mean[2] = {1, 2};
    float mean_k[8] = {0, 0, 0, 0, 1, 1, 0, 0}, mean_v[8] = {0, 0, 0, 1, 2, 2, 0, 0};
    BlockList list;
    list.block = list.tile = 2;
    list.first = TensorView::of(&first, DType::kI64, {1});
    list.counts = TensorView::of(&kept_n, DType::kI32, {1});
    list.blocks = TensorView::of(kept, DType::kI32, {1, 2});
    if (means) {
      list.mean_counts = TensorView::of(&means_n, DType::kI32, {1});
      list.mean_blocks = TensorView::of(mean, DType::kI32, {1, 2});
      list.mean_k = TensorView::of(mean_k, DType::kF32, {1, 1, 4, 2});
      list.mean_v = TensorView::of(mean_v, DType::kF32, {1, 1, 4, 2});
    }
    scene.args().blocks = &list;
    attend_plain(scene.args(), scene.part(), stream);
    const float want[2][4] = {{1.057409f, 0, 1.402215f, 1.206645f},
                              {1.182551f, .409483f, 1.505537f, 1.505537f}};
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(scene.out()[i], want[means][i], 2e-6f);
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAmx}) {
    all.push_back({1, 1, 64, 32, DType::kF16, isa});
    all.push_back({6, 2, 64, 64, DType::kF16, isa});
    all.push_back({7, 1, 64, 128, DType::kF16, isa});
    all.push_back({8, 1, 128, 32, DType::kBF16, isa});
    all.push_back({14, 2, 24, 16, DType::kF32, isa});
    all.push_back({3, 3, 20, 32, DType::kF16, isa});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Shapes, Blocks, ::testing::ValuesIn(cases()), [](const auto& test) {
  const Case& c = test.param;
  return std::string(cpu::to_string(c.isa)) + "_" + to_string(c.dtype) + "_" + std::to_string(c.q_heads) +
         "of" + std::to_string(c.kv_heads) + "_" + std::to_string(c.dim) + "_" + std::to_string(c.block);
});

}  // namespace
}  // namespace se
