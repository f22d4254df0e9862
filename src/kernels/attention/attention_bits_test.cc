// What must not show in a single bit: cuts of a prompt, batch mates, threads, tables with equal places,
// values that a query does not see.
#include <gtest/gtest.h>

#include <cmath>

#include "device/cpu/isa.h"
#include "kernels/attention/attention_testing.h"

namespace se {
namespace {

using namespace attention_testing;  // NOLINT: a test's own helpers

struct Result {
  std::vector<float> out, lse;
  bool operator==(const Result& o) const {
    return out.size() == o.out.size() && std::memcmp(out.data(), o.out.data(), out.size() * 4) == 0 &&
           std::memcmp(lse.data(), o.lse.data(), lse.size() * 4) == 0;
  }
  void append(const Result& o) {
    out.insert(out.end(), o.out.begin(), o.out.end());
    lse.insert(lse.end(), o.lse.begin(), o.lse.end());
  }
};

Result attend(Scene& scene, int threads) {
  ThreadPool pool(threads);
  Stream stream(pool);
  scene.build();
  attend_plain(scene.args(), scene.part(), stream);
  return {scene.out(), scene.lse()};
}

// The prompt x in chunks; what was seen lies in pages.
Result prefill(const Shape& shape, const Tokens& x, int64_t chunk, int split, int64_t from = 0) {
  Result all;
  for (int64_t at = from; at < x.n; at += chunk) {
    Scene scene(shape);
    scene.add_row(x, at, std::min(chunk, x.n - at), split);
    all.append(attend(scene, 1));
  }
  return all;
}

struct BitCase {
  Shape shape;
  cpu::Isa isa;
};

class AttentionBits : public ::testing::TestWithParam<BitCase> {
 protected:
  void SetUp() override {
    if (GetParam().isa > cpu::best_isa()) GTEST_SKIP() << "no " << cpu::to_string(GetParam().isa);
    cpu::set_isa_for_test(GetParam().isa);
    shape_ = GetParam().shape;
  }
  void TearDown() override { cpu::set_isa_for_test(cpu::best_isa()); }
  Shape shape_;
};

TEST_P(AttentionBits, CutsOfAPromptDoNotShow) {
  const Tokens x(shape_, 203, 11);
  for (int split : {64, 48, 0}) {
    const Result whole = prefill(shape_, x, x.n, split);
    for (int64_t chunk : {1, 7, 64})
      EXPECT_TRUE(whole == prefill(shape_, x, chunk, split)) << chunk << " " << split;
  }
}

TEST_P(AttentionBits, BatchMatesAndThreadsDoNotShow) {
  const Tokens x(shape_, 260, 12), y(shape_, 90, 13);
  Scene alone(shape_);
  alone.add_row(x, 250, 1, 64);
  const Result row = attend(alone, 1);
  for (int threads : {1, 2, 5}) {
    Scene scene(shape_);
    scene.add_row(y, 40, 3, 32);
    const int at = 3;
    scene.add_row(x, 250, 1, 64);
    scene.add_row(y, 20, 70, 128);
    const Result all = attend(scene, threads);
    const Result mine{{all.out.begin() + at * shape_.q_heads * shape_.v_dim,
                       all.out.begin() + (at + 1) * shape_.q_heads * shape_.v_dim},
                      {all.lse.begin() + at * shape_.q_heads, all.lse.begin() + (at + 1) * shape_.q_heads}};
    EXPECT_TRUE(row == mine) << threads;
  }
}

// Runs of 8 in pages of 16 name the places that full runs of 16 name.
TEST_P(AttentionBits, TablesWithEqualPlacesGiveEqualBits) {
  const Tokens x(shape_, 203, 14);
  Shape halves = shape_;
  halves.unit = 8;
  Shape wide = shape_;
  wide.unit = wide.page = 64;
  for (int64_t fresh : {1, 5, 50}) {
    Scene a(shape_), b(halves), c(wide, 4, 2);
    a.add_row(x, 150, fresh, 64);
    b.add_row(x, 150, fresh, 64);
    c.add_row(x, 150, fresh, 64);
    const Result r = attend(a, 2);
    EXPECT_TRUE(r == attend(b, 2)) << fresh;
    EXPECT_TRUE(r == attend(c, 2)) << fresh;
  }
}

// A key of the future may hold anything: NaN, infinities.
TEST_P(AttentionBits, KeysNotSeenContributeNothing) {
  const Tokens x(shape_, 60, 15);
  Tokens bad = x;
  const int64_t good = 37;
  for (size_t i = size_t(good) * size_t(shape_.kv_heads * shape_.k_dim); i < bad.k.size(); ++i)
    bad.k[i] = NAN;
  for (size_t i = size_t(good) * size_t(shape_.kv_heads * shape_.v_dim); i < bad.v.size(); ++i)
    bad.v[i] = INFINITY;
  Result a = prefill(shape_, x, 50, 32, 10), b = prefill(shape_, bad, 50, 32, 10);
  for (Result* r : {&a, &b}) {
    r->out.resize(size_t((good - 10) * shape_.q_heads * shape_.v_dim));
    r->lse.resize(size_t((good - 10) * shape_.q_heads));
  }
  EXPECT_TRUE(a == b);
}

// Draft tokens: one row per token that sees the row's present from kv_from on; rows of decode, rows of a
// prompt. Where prompts have kernels of their own (avx512, amx), the two differ in rounding.
TEST_P(AttentionBits, ARowPerTokenEqualsOneRowOfAllTokens) {
  const Tokens x(shape_, 80, 16);
  ThreadPool pool(2);
  Stream stream(pool);
  Scene chunk(shape_);
  chunk.add_row(x, 70, 4, 32);
  const Result prompt = attend(chunk, 1);
  chunk.build();
  chunk.step().decode_rows = 1;
  attend_plain(chunk.args(), chunk.part(), stream);
  const Result decode{chunk.out(), chunk.lse()};
  if (GetParam().isa < cpu::Isa::kAvx512) {
    EXPECT_TRUE(prompt == decode);
  }
  Scene rows(shape_);
  rows.add_row(x, 70, 4, 32);
  rows.build();
  // Four rows over the same runs and the same present.
  std::vector<int32_t> q_start{0, 1, 2, 3, 4}, kv_from(4, 0), split(4, 32), ids{3, 1, 0, 2};
  const KvIndex one = rows.part().index;
  std::vector<int64_t> start(4, *one.start.ptr<int64_t>()), offset(4, *one.offset.ptr<int64_t>());
  std::vector<int32_t> counts(4, *one.counts.ptr<int32_t>());
  StepRows step;
  step.rows = 4;
  step.q_start = TensorView::of(q_start.data(), DType::kI32, {5});
  step.kv_from = TensorView::of(kv_from.data(), DType::kI32, {4});
  step.split = TensorView::of(split.data(), DType::kI32, {4});
  rows.part().index.start = TensorView::of(start.data(), DType::kI64, {4});
  rows.part().index.offset = TensorView::of(offset.data(), DType::kI64, {4});
  rows.part().index.counts = TensorView::of(counts.data(), DType::kI32, {4});
  int32_t n = 4;
  rows.args().rows = &step;
  rows.args().list = {TensorView::of(ids.data(), DType::kI32, {4}), TensorView::of(&n, DType::kI32, {1}), 4};
  for (int decode_rows : {0, 4}) {
    step.decode_rows = decode_rows;
    attend_plain(rows.args(), rows.part(), stream);
    EXPECT_TRUE((decode_rows == 0 ? prompt : decode) == (Result{rows.out(), rows.lse()})) << decode_rows;
  }
}

// One table per KV head: each head's row equals the head of a step where all heads have that table.
TEST_P(AttentionBits, TablesPerHeadReadTheirOwnRuns) {
  const Tokens x(shape_, 100, 17);
  Scene scene(shape_);
  scene.add_row(x, 90, 1, 64);
  scene.build();
  const KvIndex one = scene.part().index;
  const int64_t all = *one.counts.ptr<int32_t>(), heads = shape_.kv_heads;
  std::vector<int64_t> start(static_cast<size_t>(heads)), offset(size_t(heads), 0);
  std::vector<int32_t> counts(static_cast<size_t>(heads));
  for (int64_t h = 0; h < heads; ++h) start[size_t(h)] = h, counts[size_t(h)] = int32_t(all - h - 1);
  scene.part().index.row_heads = int(heads);
  scene.part().index.start = TensorView::of(start.data(), DType::kI64, {heads});
  scene.part().index.offset = TensorView::of(offset.data(), DType::kI64, {heads});
  scene.part().index.counts = TensorView::of(counts.data(), DType::kI32, {heads});
  ThreadPool pool(2);
  Stream stream(pool);
  attend_plain(scene.args(), scene.part(), stream);
  const std::vector<float> out = scene.out();
  for (int64_t h = 0; h < heads; ++h) {
    scene.build();
    scene.part().index.row_heads = 1;
    scene.part().index.start = TensorView::of(&start[size_t(h)], DType::kI64, {1});
    scene.part().index.counts = TensorView::of(&counts[size_t(h)], DType::kI32, {1});
    attend_plain(scene.args(), scene.part(), stream);
    const size_t width = size_t(shape_.q_heads / heads * shape_.v_dim);
    EXPECT_EQ(std::memcmp(&out[size_t(h) * width], &scene.out()[size_t(h) * width], width * 4), 0) << h;
  }
}

std::vector<BitCase> cases() {
  std::vector<BitCase> all;
  for (cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAmx}) {
    all.push_back({{9, 3, 64, 64, DType::kF16}, isa});
    all.push_back({{2, 2, 80, 80, DType::kBF16}, isa});
    all.push_back({{4, 1, 36, 20, DType::kF16}, isa});
    all.push_back({{8, 2, 128, 128, DType::kF32}, isa});
  }
  return all;
}

std::string name_of(const ::testing::TestParamInfo<BitCase>& info) {
  const Shape& s = info.param.shape;
  return std::string(cpu::to_string(info.param.isa)) + "_" + to_string(s.dtype) + "_" +
         std::to_string(s.k_dim);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionBits, ::testing::ValuesIn(cases()), name_of);

}  // namespace
}  // namespace se
