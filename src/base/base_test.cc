#include <gtest/gtest.h>

#include <cmath>

#include "base/check.h"
#include "base/fields.h"
#include "base/half.h"
#include "base/hash.h"
#include "base/quoted.h"
#include "base/rng.h"
#include "base/status.h"

namespace se {
namespace {

Result<int> half_of(int n) {
  if (n % 2) return invalid(format("{} is odd", n));
  return n / 2;
}
Result<int> quarter_of(int n) {
  SE_ASSIGN(const int half, half_of(n));
  SE_ASSIGN(const int quarter, half_of(half));
  return quarter;
}

TEST(Status, ErrorsTravelThroughAssign) {
  EXPECT_EQ(*quarter_of(8), 2);
  EXPECT_EQ(quarter_of(6).status().message(), "3 is odd");
  EXPECT_EQ(quarter_of(7).status().code(), Code::kInvalid);
  EXPECT_EQ(invalid("x").in("file").message(), "file: x");
}

TEST(Half, EveryF16RoundTrips) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float f = f16_to_f32(uint16_t(h));
    if (std::isnan(f)) continue;
    EXPECT_EQ(f32_to_f16(f), h);
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f), f32_to_f16(1.0f));                // tie: even below
  EXPECT_EQ(f32_to_f16(1.0f + 3 * 0x1p-11f), f32_to_f16(1.0f + 0x1p-9f));  // tie: even above
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-0x1p-25f), 0x8000);
  EXPECT_EQ(f32_to_f16(0x1.8p-24f), 2);
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(1.0f + 0x1p-8f)), 1.0f);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::nanf("")))));
}

TEST(Fields, IntegersTakeBinarySuffixesAndRefuseTheRest) {
  int64_t v = 0;
  EXPECT_TRUE(parse_integer("8k", v));
  EXPECT_EQ(v, 8192);
  EXPECT_TRUE(parse_integer("1m", v));
  EXPECT_EQ(v, 1048576);
  for (const char* bad : {"", "k", "8kk", "8.5", "9999999999999m", "0x10", " 8"})
    EXPECT_FALSE(parse_integer(bad, v)) << bad;
}

TEST(Fields, NearestNameIsAHintNotAGuess) {
  const std::vector<std::string> names{"budget", "sink", "recent"};
  EXPECT_EQ(nearest_name("budgt", names), "budget");
  EXPECT_EQ(nearest_name("quantisation", names), "");
}

TEST(Quoted, IsOneShortLine) {
  EXPECT_EQ(quoted("a b"), "'a b'");
  EXPECT_EQ(quoted("a\n\xc3\xa9\x7f"), "'a\\x0a\\xc3\\xa9\\x7f'");
  EXPECT_EQ(quoted("abcd", 3), "'abc...'");
}

TEST(Rng, PhiloxMatchesThePublishedVector) {  // Random123 known answers: all ones, and pi digits
  const auto z = philox(0, 0, 0);
  EXPECT_EQ(z[0], 0x6627e8d5u);
  EXPECT_EQ(z[1], 0xe169c58du);
  EXPECT_EQ(z[2], 0xbc57ac4cu);
  EXPECT_EQ(z[3], 0x9b00dbd8u);
  const auto o = philox(~0ull, ~0ull, ~0ull);
  EXPECT_EQ(o[0], 0x408f276du);
}

TEST(Hash, FieldsDoNotRunTogether) {
  EXPECT_NE(Fingerprint().add("ab").add("c").value(), Fingerprint().add("a").add("bc").value());
  EXPECT_NE(Fingerprint().add(int64_t{1}).value(), Fingerprint().add(int64_t{2}).value());
}

TEST(CheckDeathTest, NamesTheConditionAndTheValues) {
  EXPECT_DEATH(SE_CHECK(1 > 2, "got {}", 7), "1 > 2: got 7");
}

}  // namespace
}  // namespace se
