// The test vectors of spec/models.md 2.3.2 and 2.3.3.
#include "kernels/rope/rope_scaling.h"

#include <gtest/gtest.h>

#include <cmath>

namespace se {
namespace {

using Kind = RopeParameters::Kind;

RopeParameters llama3(double factor) {
  RopeParameters s;
  s.kind = Kind::kLlama3, s.factor = factor, s.low = 1, s.high = 4, s.original = 8192;
  return s;
}

// Channels [0, plain) as they were, [stretched, end) divided by the factor, strictly between in the middle.
void expect_regions(const RopeTable& t, double theta, double factor, size_t plain, size_t stretched) {
  const size_t n = t.frequencies.size();
  for (size_t i = 0; i < n; ++i) {
    const double f = std::pow(theta, -double(i) / double(n)), got = double(t.frequencies[i]);
    if (i < plain) {
      EXPECT_FLOAT_EQ(float(got), float(f)) << i;
    } else if (i >= stretched) {
      EXPECT_FLOAT_EQ(float(got), float(f / factor)) << i;
    } else {
      EXPECT_LT(got, f * (1 - 1e-5)) << i;
      EXPECT_GT(got, f / factor * (1 + 1e-5)) << i;
    }
  }
}

TEST(RopeScaling, Llama3IsThatOfThePublishedModels) {
  const RopeTable small = rope_table(64, 500000, llama3(32));
  expect_regions(small, 500000, 32, 15, 18);
  EXPECT_FLOAT_EQ(small.frequencies[1], 0.663601238f);
  EXPECT_FLOAT_EQ(small.frequencies[15], 0.00129054793f);
  EXPECT_FLOAT_EQ(small.frequencies[16], 0.000429556797f);
  EXPECT_FLOAT_EQ(small.frequencies[17], 9.7082878e-05f);
  EXPECT_FLOAT_EQ(small.frequencies[31], 9.41830673e-08f);
  const RopeTable large = rope_table(128, 500000, llama3(8));
  expect_regions(large, 500000, 8, 29, 35);
  EXPECT_FLOAT_EQ(large.frequencies[1], 0.814617234f);
  EXPECT_FLOAT_EQ(large.frequencies[29], 0.00216657076f);
  EXPECT_FLOAT_EQ(large.frequencies[31], 0.000856751413f);
  EXPECT_FLOAT_EQ(large.frequencies[34], 0.000178507813f);
  EXPECT_FLOAT_EQ(large.frequencies[63], 3.06892599e-07f);
  EXPECT_EQ(large.amplitude, 1);
}

TEST(RopeScaling, YarnIsThatOfQwenAndDeepSeek) {
  RopeParameters s;
  s.kind = Kind::kYarn, s.factor = 4, s.original = 32768;
  const RopeTable qwen = rope_table(128, 1e6, s);
  expect_regions(qwen, 1e6, 4, 24, 40);
  EXPECT_FLOAT_EQ(qwen.amplitude, 1.13862944f);
  EXPECT_FLOAT_EQ(qwen.frequencies[31], 0.000802959728f);
  EXPECT_FLOAT_EQ(qwen.frequencies[63], 3.1023444e-07f);
  s.attention_factor = 1.5;
  EXPECT_EQ(rope_table(128, 1e6, s).amplitude, 1.5f);

  s = {};
  s.kind = Kind::kYarn, s.factor = 40, s.original = 4096, s.mscale = s.mscale_all = 1;
  const RopeTable deepseek = rope_table(64, 1e4, s);
  expect_regions(deepseek, 1e4, 40, 11, 23);
  EXPECT_EQ(deepseek.amplitude, 1);
  EXPECT_FLOAT_EQ(deepseek.frequencies[16], 0.0055f);
  EXPECT_FLOAT_EQ(deepseek.frequencies[31], 3.33380358e-06f);
  EXPECT_FLOAT_EQ(float(yarn_mscale(40, 1)), 1.36888795f);
  EXPECT_EQ(yarn_mscale(1, 1), 1);
}

TEST(RopeScaling, YarnWithoutTruncationUsesFractionsOfChannels) {
  RopeParameters s;
  s.kind = Kind::kYarn, s.factor = 4, s.original = 32768;
  const RopeTable whole = rope_table(128, 1e6, s);
  s.truncate = false;
  const RopeTable fractions = rope_table(128, 1e6, s);
  // The ramp from 23.60 to 39.65 in place of 23 to 40: later at its foot, sooner at its head.
  EXPECT_GT(fractions.frequencies[24], whole.frequencies[24]);
  EXPECT_LT(fractions.frequencies[39], whole.frequencies[39]);
}

TEST(RopeScaling, LinearDividesAndDivisorsDivide) {
  RopeParameters s;
  s.kind = Kind::kLinear, s.factor = 8;
  expect_regions(rope_table(64, 1e6, s), 1e6, 8, 0, 0);
  expect_regions(rope_table(64, 1e6, {}), 1e6, 1, 32, 32);
  EXPECT_EQ(rope_table(64, 1e6, {}).frequencies[0], 1.0f);
  std::vector<float> divisors(32, 1.f);
  divisors[31] = 32;
  const RopeTable t = rope_table(64, 500000, {}, divisors.data());
  EXPECT_FLOAT_EQ(t.frequencies[1], 0.663601238f);
  EXPECT_FLOAT_EQ(t.frequencies[31], 9.41830673e-08f);
}

}  // namespace
}  // namespace se
