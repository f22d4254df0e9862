#include "kernels/linear/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/half.h"
#include "base/rng.h"
#include "device/cpu/isa.h"
#include "device/cpu/thread_pool.h"
#include "kernels/linear/packed.h"
#include "kernels/quant/quant.h"

namespace se {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon() / 2;  // of one rounding
constexpr DType kTypes[] = {DType::kF32,
                            DType::kF16,
                            DType::kBF16,
                            DType::kQ4_0,
                            DType::kQ4_1,
                            DType::kQ5_0,
                            DType::kQ5_1,
                            DType::kQ8_0,
                            DType::kQ2_K,
                            DType::kQ3_K,
                            DType::kQ4_K,
                            DType::kQ5_K,
                            DType::kQ6_K,
                            DType::kF8_32};

std::vector<float> normals(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = rng.normal();
  return v;
}

// Bytes at which the f16 fields of a block lie.
std::vector<size_t> half_fields(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
      return {0};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108};
    case DType::kQ6_K:
      return {208};
    default:
      return {};
  }
}

// Random rows: any bytes (so that Q8_0 holds -128 too), with scales of ordinary size.
std::vector<char> random_rows(DType dtype, int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<char> data(size_t(bytes_of(dtype, n)));
  for (char& c : data) c = char(rng.below(256));
  const size_t step = size_t(block_bytes(dtype));
  for (size_t at = 0; at < data.size(); at += step) {
    const float value = rng.normal();
    const uint16_t half = f32_to_f16(value), brain = f32_to_bf16(value);
    if (dtype == DType::kF32) std::memcpy(&data[at], &value, 4);
    if (dtype == DType::kF16) std::memcpy(&data[at], &half, 2);
    if (dtype == DType::kBF16) std::memcpy(&data[at], &brain, 2);
    const float fp8_scale = value * 0.002f;
    if (dtype == DType::kF8_32) std::memcpy(&data[at], &fp8_scale, 4);
    for (size_t field : half_fields(dtype)) {
      const uint16_t scale = f32_to_f16(rng.normal() * 0.02f);
      std::memcpy(&data[at + field], &scale, 2);
    }
  }
  return data;
}

struct Problem {
  DType dtype;
  int64_t tokens, out, in;
  std::vector<char> w;
  std::vector<float> x, bias;
  Buffer packed;

  Problem(DType d, int64_t t, int64_t o, int64_t i, uint64_t seed = 1)
      : dtype(d),
        tokens(t),
        out(o),
        in(i),
        w(random_rows(d, o * i, seed)),
        x(normals(t * i, seed + 1)),
        bias(normals(o, seed + 2)) {}

  // Packed where the level packs.
  Weight weight() {
    const TensorView rows = TensorView::of(w.data(), dtype, {out, in});
    const int64_t bytes = packed_bytes(rows);
    if (bytes == 0) return rows;
    if (packed.bytes() == 0) {
      packed = Buffer::allocate(bytes).take();
      std::byte* to = reinterpret_cast<std::byte*>(packed.data());
      const int64_t panels = packed_panels(rows), half = panels / 2;
      pack(rows, half, panels, to);
      pack(rows, 0, half, to);
    }
    return {rows, reinterpret_cast<const std::byte*>(packed.data())};
  }

  // Tokens [begin, end) alone, on that many threads.
  std::vector<float> run(Compute compute, int threads, int64_t begin, int64_t end, bool with_bias = true) {
    ThreadPool pool(threads);
    return run(compute, pool, begin, end, with_bias);
  }
  std::vector<float> run(
      Compute compute, ThreadPool& pool, int64_t begin, int64_t end, bool with_bias = true) {
    Stream stream(pool);
    Arena scratch;
    std::vector<float> y(size_t((end - begin) * out), -1e30f);
    const TensorView xs = TensorView::of(x.data(), DType::kF32, {tokens, in}).slice(begin, end);
    linear(xs,
           weight(),
           with_bias ? TensorView::of(bias.data(), DType::kF32, {out}) : TensorView{},
           TensorView::of(y.data(), DType::kF32, {end - begin, out}),
           compute,
           scratch,
           stream);
    EXPECT_EQ(scratch.mark().used, 0);
    return y;
  }
  std::vector<float> run(Compute compute, int threads = 1) { return run(compute, threads, 0, tokens); }
};

class ForEachType : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Linear, ForEachType, testing::ValuesIn(kTypes), [](const auto& type) {
  return std::string(to_string(type.param));
});

// Sixteen lanes of in / 16 fused steps, four folds and the bias: (in / 16 + 5) roundings of partial sums that
// are at most sum |w x| + |bias|.
TEST_P(ForEachType, ExactIsWithinTheDerivedBoundOfTheProductInDouble) {
  Problem p(GetParam(), 5, 19, 512);
  const auto y = p.run(Compute::kExact);
  std::vector<float> w(size_t(p.out * p.in));
  dequantize(p.dtype, p.w.data(), p.out * p.in, w.data());
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int64_t o = 0; o < p.out; ++o) {
      double sum = p.bias[size_t(o)], scale = std::abs(sum);
      for (int64_t i = 0; i < p.in; ++i) {
        const double product = double(w[size_t(o * p.in + i)]) * p.x[size_t(t * p.in + i)];
        sum += product, scale += std::abs(product);
      }
      ASSERT_NEAR(y[size_t(t * p.out + o)], sum, double(p.in / 16 + 5) * kEps * scale)
          << "token " << t << " row " << o;
    }
  }
}

// The default differs from exact by the rounding of activations alone: at most half a step of amax / 127 each
// (plus f32 roundings, some 2 per block), times |w|. Blocks of 32 that are not routed through integers do not
// differ at all.
TEST_P(ForEachType, DefaultDiffersFromExactByTheRoundingOfActivationsAlone) {
  Problem p(GetParam(), 3, 19, 512);
  const auto exact = p.run(Compute::kExact), fast = p.run(Compute::kDefault);
  constexpr DType kAsTheyAre[] = {DType::kF32, DType::kF16, DType::kF8_32};
  if (std::find(std::begin(kAsTheyAre), std::end(kAsTheyAre), p.dtype) != std::end(kAsTheyAre)) {
    EXPECT_EQ(fast, exact);
    return;
  }
  std::vector<float> w(size_t(p.out * p.in));
  dequantize(p.dtype, p.w.data(), p.out * p.in, w.data());
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int64_t o = 0; o < p.out; ++o) {
      double bound = 0, scale = std::abs(p.bias[size_t(o)]);
      for (int64_t b = 0; b < p.in; b += 32) {
        double amax = 0, weights = 0;
        for (int64_t i = b; i < b + 32; ++i) {
          amax = std::max(amax, double(std::abs(p.x[size_t(t * p.in + i)])));
          weights += std::abs(double(w[size_t(o * p.in + i)]));
        }
        bound += weights * amax / 254, scale += 32 * weights * amax;
      }
      const size_t at = size_t(t * p.out + o);
      ASSERT_NEAR(fast[at], exact[at], bound + 64 * kEps * scale) << "token " << t << " row " << o;
    }
  }
}

TEST_P(ForEachType, ARowDependsNeitherOnTheNumberOfTokensNorOnThreads) {
  for (Compute compute : {Compute::kDefault, Compute::kExact}) {
    Problem p(GetParam(), 17, 75, 256);
    std::vector<float> alone;
    for (int64_t t = 0; t < p.tokens; ++t) {
      const auto row = p.run(compute, 1, t, t + 1);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    for (int64_t tokens = 1; tokens <= 17; ++tokens) {
      for (int threads : {1, 2, 3}) {
        const auto y = p.run(compute, threads, 17 - tokens, 17);
        ASSERT_TRUE(std::equal(y.begin(), y.end(), alone.begin() + (17 - tokens) * p.out))
            << tokens << " tokens " << threads << " threads";
      }
    }
  }
}

std::vector<cpu::Isa> levels_above_baseline() {
  std::vector<cpu::Isa> levels;
  for (cpu::Isa level : {cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAmx}) {
    if (level <= cpu::best_isa()) levels.push_back(level);
  }
  return levels;
}

TEST_P(ForEachType, EveryInstructionSetGivesTheSameBits) {
  if (cpu::best_isa() < cpu::Isa::kAvx2) GTEST_SKIP() << "no AVX2";
  const auto before = cpu::isa();
  for (Compute compute : {Compute::kDefault, Compute::kExact}) {
    for (int64_t tokens : {1, 2, 3, 4, 5, 9}) {
      for (int64_t out : {1, 8, 13, 64}) {
        Problem p(GetParam(), tokens, out, 512, uint64_t(out));
        for (bool bias : {false, true}) {
          cpu::set_isa_for_test(cpu::Isa::kBaseline);
          const auto want = p.run(compute, 1, 0, tokens, bias);
          for (cpu::Isa level : levels_above_baseline()) {
            cpu::set_isa_for_test(level);
            ASSERT_EQ(p.run(compute, 1, 0, tokens, bias), want)
                << cpu::to_string(level) << " " << tokens << " tokens " << out << " rows";
          }
        }
      }
    }
  }
  cpu::set_isa_for_test(before);
}

// Tiles of 16 tokens and what is left of them, panels of 16 rows and what is left, one block and odd numbers
// of blocks.
TEST_P(ForEachType, EveryTileShapeGivesTheSameBits) {
  const auto before = cpu::isa();
  const int64_t block = block_elements(GetParam()) > 32 ? 256 : 32;
  for (int64_t in : {block, 3 * block, 4 * block}) {
    for (int64_t out : {1, 15, 16, 17, 100}) {
      Problem p(GetParam(), 130, out, in, uint64_t(out + in));
      cpu::set_isa_for_test(cpu::Isa::kBaseline);
      const auto want = p.run(Compute::kDefault);
      for (cpu::Isa level : levels_above_baseline()) {
        cpu::set_isa_for_test(level);
        for (int64_t tokens : {1, 6, 7, 8, 11, 15, 16, 17, 20, 21, 31, 32, 33, 64, 100, 129, 130}) {
          const auto y = p.run(Compute::kDefault, tokens == 130 ? 5 : 2, 130 - tokens, 130);
          ASSERT_TRUE(std::equal(y.begin(), y.end(), want.begin() + (130 - tokens) * out))
              << cpu::to_string(level) << " " << tokens << " tokens " << out << " rows " << in << " wide";
        }
      }
    }
  }
  cpu::set_isa_for_test(before);
}

TEST(Linear, ProductsOfOneInputAreThoseOfEachAlone) {
  Problem a(DType::kQ5_0, 20, 40, 256, 1), b(DType::kQ6_K, 20, 17, 256, 2), c(DType::kF16, 20, 5, 256, 3),
      d(DType::kQ4_1, 20, 33, 256, 4);
  ThreadPool pool(2);
  Stream stream(pool);
  Arena scratch;
  for (int64_t tokens : {1, 20}) {
    std::vector<Product> products;
    std::vector<std::vector<float>> y, want;
    Problem* problems[] = {&a, &b, &c, &d};
    for (Problem* p : problems) {
      p->x = a.x;
      want.push_back(p->run(Compute::kDefault, 1, 0, tokens));
      y.emplace_back(size_t(tokens * p->out));
    }
    for (size_t i = 0; i < 4; ++i) {
      Problem& p = *problems[i];
      // The last comes without its packed form, among others that have it.
      const Weight w = i == 3 ? Weight(TensorView::of(p.w.data(), p.dtype, {p.out, p.in})) : p.weight();
      products.push_back({w,
                          TensorView::of(p.bias.data(), DType::kF32, {p.out}),
                          TensorView::of(y[i].data(), DType::kF32, {tokens, p.out})});
    }
    const TensorView x = TensorView::of(a.x.data(), DType::kF32, {20, 256}).slice(0, tokens);
    linear(x, products, Compute::kDefault, scratch, stream);
    EXPECT_EQ(y, want) << tokens << " tokens";
  }
}

// As on a machine with several memory nodes: their shares of a matrix may be empty.
TEST_P(ForEachType, SharesOfNodesLeaveNoTrace) {
  const int cpu = allowed_cpus().front();
  const std::vector<CpuNode> nodes = {{0, {cpu}, 1}, {1, {cpu}, 2}, {2, {cpu}, 1}};
  for (int64_t out : {1, 17, 100}) {
    Problem p(GetParam(), 33, out, 256, uint64_t(out));
    const auto want = p.run(Compute::kDefault);
    for (int threads : {2, 4, 7}) {
      ThreadPool pool(threads, nodes);
      for (int64_t tokens : {1, 33}) {
        const auto y = p.run(Compute::kDefault, pool, 33 - tokens, 33);
        ASSERT_TRUE(std::equal(y.begin(), y.end(), want.begin() + (33 - tokens) * out))
            << tokens << " tokens " << threads << " threads " << out << " rows";
      }
    }
  }
}

TEST(Linear, ManyTokensGoInChunksWithoutATrace) {
  for (DType dtype : {DType::kQ4_1, DType::kQ8_0, DType::kF16}) {
    Problem p(dtype, 600, 9, 64);
    const auto all = p.run(Compute::kDefault, 2);
    for (int64_t t : {0, 255, 256, 511, 599}) {
      const auto row = p.run(Compute::kDefault, 1, t, t + 1);
      EXPECT_TRUE(std::equal(row.begin(), row.end(), all.begin() + t * p.out))
          << to_string(dtype) << " token " << t;
    }
  }
}

TEST(Linear, PlainFloatsTakeAnyWidthAndStridedRows) {
  const auto before = cpu::isa();
  for (int64_t in : {1, 3, 7, 8, 9, 15, 16, 17, 31, 100}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      Problem p(dtype, 4, 5, in);
      cpu::set_isa_for_test(cpu::Isa::kBaseline);
      const auto want = p.run(Compute::kDefault);
      for (cpu::Isa level : levels_above_baseline()) {
        cpu::set_isa_for_test(level);
        ASSERT_EQ(p.run(Compute::kDefault), want) << cpu::to_string(level) << " in " << in;
      }
      cpu::set_isa_for_test(before);
    }
  }
  Problem p(DType::kQ8_0, 2, 6, 64);
  ThreadPool pool(1);
  Stream stream(pool);
  Arena scratch;
  std::vector<float> y(6);
  TensorView w = TensorView::of(p.w.data(), p.dtype, {6, 64}).slice(0, 3);
  w.stride[0] *= 2;  // every other row
  for (Compute compute : {Compute::kDefault, Compute::kExact}) {
    linear(TensorView::of(p.x.data(), DType::kF32, {2, 64}),
           w,
           {},
           TensorView::of(y.data(), DType::kF32, {2, 3}),
           compute,
           scratch,
           stream);
    const auto all = p.run(compute, 1, 0, 2, false);
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(y[i], all[i / 3 * 6 + i % 3 * 2]);
  }
}

// BF16 weights with AVX-512: machines with the instruction for pairs and machines without it.
TEST(Linear, RoundedProductsAreTheSameWithAndWithoutTheirInstruction) {
  if (!cpu::has_avx512_bf16()) GTEST_SKIP() << "no AVX512_BF16";
  for (int64_t in : {1, 31, 32, 33, 96, 250}) {
    Problem p(DType::kBF16, 11, 9, in, uint64_t(in));
    const int64_t stride = linear_detail::rounded_stride(in);
    std::vector<uint16_t> brains(size_t(p.tokens * stride));
    std::vector<float> parts(brains.size()), want(size_t(p.tokens * p.out)), got(want.size());
    for (int64_t t = 0; t < p.tokens; ++t) {
      linear_detail::round_token(&p.x[size_t(t * in)], in, &brains[size_t(t * stride)]);
      linear_detail::part_row(&brains[size_t(t * stride)], stride, &parts[size_t(t * stride)]);
    }
    const linear_detail::Rows rows{p.w.data(), in * 2, 0, p.out};
    linear_detail::rounded_rows_avx512bf16(
        rows, {brains.data(), p.tokens, in, stride}, {want.data(), p.out, p.bias.data()});
    linear_detail::rounded_rows_avx512(
        rows, {parts.data(), p.tokens, in, stride}, {got.data(), p.out, p.bias.data()});
    EXPECT_EQ(got, want) << "in " << in;
  }
}

TEST(Linear, ZeroTinyAndNanActivationsComeOutAsSuch) {
  const auto before = cpu::isa();
  auto levels = levels_above_baseline();
  levels.push_back(cpu::Isa::kBaseline);
  for (auto level : levels) {
    cpu::set_isa_for_test(level);
    Problem p(DType::kQ4_1, 3, 8, 64);
    std::fill(p.x.begin(), p.x.end(), 0.f);
    std::fill(p.x.begin() + 64, p.x.begin() + 128, 1e-38f);
    p.x[128 + 40] = std::numeric_limits<float>::quiet_NaN();
    const auto y = p.run(Compute::kDefault, 1, 0, 3, false);
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(y[i], 0) << i;
    for (size_t i = 16; i < 24; ++i) EXPECT_TRUE(std::isnan(y[i])) << i;
  }
  cpu::set_isa_for_test(before);
}

TEST(Linear, ShapesAndTypesThatDoNotFitAreBugs) {
  EXPECT_FALSE(supports_linear(DType::kI8));
  for (DType dtype : kTypes) EXPECT_TRUE(supports_linear(dtype));
  Problem p(DType::kQ8_0, 2, 6, 64);
  ThreadPool pool(1);
  Stream stream(pool);
  Arena scratch;
  std::vector<float> y(12);
  EXPECT_DEATH(linear(TensorView::of(p.x.data(), DType::kF32, {4, 32}),
                      TensorView::of(p.w.data(), p.dtype, {6, 64}),
                      {},
                      TensorView::of(y.data(), DType::kF32, {2, 6}),
                      Compute::kDefault,
                      scratch,
                      stream),
               "x f32.4, 32., wanted f32");
}

}  // namespace
}  // namespace se
