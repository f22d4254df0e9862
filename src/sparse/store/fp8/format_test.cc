#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/npy.h"
#include "device/cpu/isa.h"
#include "sparse/store/fp8/decode.h"
#include "sparse/store/fp8/fp8.h"

namespace se::fp8 {
namespace {

const std::string kGoldens = "src/sparse/store/fp8/goldens/";
constexpr Format kFormats[] = {kE4M3, kE5M2};
std::string name(Format f) { return f == kE4M3 ? "e4m3" : "e5m2"; }

TEST(Fp8Format, SpecExamples) {  // methods-compressed.md 13.1
  const struct {
    float x;
    int code;
    float value;
  } cases[] = {{1, 0x38, 1},
               {0.1f, 0x1d, 0.1015625f},
               {0.3f, 0x2a, 0.3125f},
               {3.3f, 0x45, 3.25f},
               {17, 0x58, 16},
               {19, 0x5a, 20},
               {0x1p-9f, 0x01, 0x1p-9f},
               {0x1p-10f, 0x00, 0},
               {300, 0x79, 288},
               {447, 0x7e, 448},
               {448, 0x7e, 448},
               {1000, 0x7e, 448},
               {-0.0625f, 0x98, -0.0625f},
               {0.0175f, 0x09, 0.017578125f}};
  for (const auto& c : cases) {
    EXPECT_EQ(encode(kE4M3, c.x), c.code) << c.x;
    EXPECT_EQ(decode(kE4M3, uint8_t(c.code)), c.value) << c.x;
  }
  const float scaled[][3] = {{0.137f, 0x4e, 0.14f},
                             {-0.5f, 0xdc, -0.48f},
                             {1, 0x64, 0.96f},
                             {8.9f, 0x7e, 8.96f},
                             {9.5f, 0x7e, 8.96f}};
  for (const auto& c : scaled) {
    uint8_t code = 0;
    float back = 0;
    encode_row(kE4M3, &c[0], 1, 0.02f, &code);
    decode_row(kE4M3, &code, 1, 0.02f, &back);
    EXPECT_EQ(code, int(c[1]));
    EXPECT_FLOAT_EQ(back, c[2]);
  }
  const float x[] = {0.25f, -1, 3.5f, 0.01f};
  uint8_t codes[4];
  EXPECT_EQ(scale_of(kE4M3, x, 4), 0.0078125f);
  encode_row(kE4M3, x, 4, 0.0078125f, codes);
  EXPECT_EQ(std::vector<int>(codes, codes + 4), (std::vector<int>{0x60, 0xf0, 0x7e, 0x3a}));
}

TEST(Fp8Format, EveryCodeRoundTripsAndEqualsTheOraclesTable) {
  for (Format f : kFormats) {
    const auto table = Npy::load(kGoldens + name(f) + "_table.npy").as<float>();
    for (int c = 0; c < 256; ++c) {
      const float x = decode(f, uint8_t(c));
      if (std::isnan(table[size_t(c)])) {
        EXPECT_TRUE(std::isnan(x));
        continue;
      }
      EXPECT_EQ(x, table[size_t(c)]) << c;
      if (std::isfinite(x)) {
        EXPECT_EQ(encode(f, x), c);
      }
    }
  }
}

TEST(Fp8Format, EncoderEqualsTheOracle) {
  for (Format f : kFormats) {
    const auto in = Npy::load(kGoldens + name(f) + "_in.npy").as<float>();
    const auto out = Npy::load(kGoldens + name(f) + "_out.npy").as<int>();
    for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(encode(f, in[i]), out[i]) << name(f) << " of " << in[i];
  }
}

TEST(Fp8Format, SaturatesInfinitiesAndKeepsNan) {
  const float inf = std::numeric_limits<float>::infinity();
  for (Format f : kFormats) {
    EXPECT_EQ(decode(f, encode(f, inf)), largest(f));
    EXPECT_EQ(decode(f, encode(f, -inf)), -largest(f));
    EXPECT_TRUE(std::isnan(decode(f, encode(f, NAN))));
    const float row[] = {inf, 1, -2};
    EXPECT_TRUE(std::isfinite(scale_of(f, row, 3)));
    const float zeros[] = {0, -0.f};
    EXPECT_EQ(scale_of(f, zeros, 2), 1e-30f);
  }
}

TEST(Fp8Format, ScalesAndCodesEqualTheOracle) {
  const Npy kv = Npy::load(kGoldens + "kv.npy");
  const auto x = kv.as<float>();
  for (Format f : kFormats) {
    for (bool by_head : {true, false}) {
      const std::string prefix = kGoldens + name(f) + (by_head ? "_head" : "_token");
      const auto scales = Npy::load(prefix + "_scale.npy").as<float>();
      const auto codes = Npy::load(prefix + "_codes.npy").as<int>();
      const int64_t run = by_head ? 64 : 3 * 64;
      std::vector<float> back(x.size());
      for (size_t i = 0; i < scales.size(); ++i) {
        const int64_t at = int64_t(i) * run;
        const float scale = scale_of(f, &x[size_t(at)], run);
        EXPECT_EQ(scale, scales[i]);
        std::vector<uint8_t> got(static_cast<size_t>(run));
        encode_row(f, &x[size_t(at)], run, scale, got.data());
        for (int64_t d = 0; d < run; ++d) EXPECT_EQ(got[size_t(d)], codes[size_t(at + d)]);
        decode_row(f, got.data(), run, scale, &back[size_t(at)]);
      }
      if (f == kE4M3 && by_head) {
        EXPECT_EQ(back, Npy::load(prefix + "_values.npy").as<float>());
      }
    }
  }
}

TEST(Fp8, TablesAgreeBitForBit) {
  std::vector<uint8_t> codes;
  for (int i = 0; i < 256 + 37; ++i)
    codes.push_back(uint8_t(i * 7));  // every code, not in order, an odd count
  for (const float scale : {1.f, 0.0123f, 1e-30f, 3e37f}) {
    const auto same = [&](const Decode& table) {
      for (const bool wide : {true, false}) {
        std::vector<float> got(codes.size()), want(codes.size());
        (wide ? table.e4m3 : table.e5m2)(codes.data(), int64_t(codes.size()), scale, got.data());
        (wide ? kDecodeBaseline.e4m3 : kDecodeBaseline.e5m2)(
            codes.data(), int64_t(codes.size()), scale, want.data());
        for (size_t i = 0; i < codes.size(); ++i)
          EXPECT_TRUE(std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(want[i]) ||
                      (std::isnan(got[i]) && std::isnan(want[i])))
              << wide << " " << int(codes[i]) << " " << scale;
      }
    };
    if (cpu::best_isa() >= cpu::Isa::kAvx2) same(kDecodeAvx2);
    if (cpu::best_isa() >= cpu::Isa::kAvx512) same(kDecodeAvx512);
  }
}

}  // namespace
}  // namespace se::fp8
