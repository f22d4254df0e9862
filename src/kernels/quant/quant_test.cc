#include "kernels/quant/quant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/npy.h"
#include "device/cpu/isa.h"

namespace se {
namespace {

constexpr DType kTypes[] = {DType::kF16,
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
                            DType::kQ6_K};

std::string golden(DType dtype, const char* part) {
  std::string name = to_string(dtype);
  std::transform(
      name.begin(), name.end(), name.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  return "tests/goldens/quant/" + name + "." + part + ".npy";
}

TEST(Dequantize, EveryBlockTypeEqualsTheGgufPackageBitForBitOnEveryInstructionSet) {
  const auto before = cpu::isa();
  for (auto level : {cpu::Isa::kBaseline, cpu::best_isa()}) {
    cpu::set_isa_for_test(level);
    for (DType dtype : kTypes) {
      const Npy blocks = Npy::load(golden(dtype, "blocks")), values = Npy::load(golden(dtype, "values"));
      const std::vector<float> want = values.as<float>();
      const int64_t n = values.numel();
      ASSERT_EQ(blocks.numel(), bytes_of(dtype, n));
      std::vector<char> shifted(blocks.bytes.size() + 1);  // blocks lie at odd addresses too
      std::memcpy(shifted.data() + 1, blocks.bytes.data(), blocks.bytes.size());
      std::vector<float> got(static_cast<size_t>(n));
      dequantize(dtype, shifted.data() + 1, n, got.data());
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], want[i]) << to_string(dtype) << " element " << i << " at " << cpu::to_string(level);
    }
  }
  cpu::set_isa_for_test(before);
}

// All 256 codes but the two that are no numbers, against the table of another implementation.
TEST(Dequantize, Fp8BlocksAreScaleTimesCode) {
  const std::vector<float> table = Npy::load("src/sparse/store/fp8/goldens/e4m3_table.npy").as<float>();
  ASSERT_EQ(table.size(), 256u);
  const auto before = cpu::isa();
  for (auto level : {cpu::Isa::kBaseline, cpu::best_isa()}) {
    cpu::set_isa_for_test(level);
    for (const float scale : {1.0f, -0.37f, 1.7e-4f}) {
      std::vector<uint8_t> blocks;
      for (int c = 0; c < 256; ++c) {
        if (c % 32 == 0) {
          blocks.resize(blocks.size() + 4);
          std::memcpy(blocks.data() + blocks.size() - 4, &scale, 4);
        }
        blocks.push_back((c & 0x7f) == 0x7f ? 0 : uint8_t(c));
      }
      std::vector<float> got(256);
      dequantize(DType::kF8_32, blocks.data(), 256, got.data());
      for (size_t c = 0; c < 256; ++c)
        ASSERT_EQ(got[c], scale * ((c & 0x7f) == 0x7f ? 0 : table[c])) << "code " << c;
    }
  }
  cpu::set_isa_for_test(before);
}

TEST(Dequantize, PlainFloatsOfAnyLengthPassUnchanged) {
  for (int64_t n : {0, 1, 7, 8, 9, 31}) {
    std::vector<float> x(size_t(n), 0.f), out(size_t(n) + 1, -1.f);
    for (size_t i = 0; i < x.size(); ++i) x[i] = float(i) * 0.25f - 3;
    dequantize(DType::kF32, x.data(), n, out.data());
    EXPECT_TRUE(std::equal(x.begin(), x.end(), out.begin()));
    std::vector<uint16_t> half(x.size()), brain(x.size());
    std::transform(x.begin(), x.end(), half.begin(), f32_to_f16);
    std::transform(x.begin(), x.end(), brain.begin(), f32_to_bf16);
    dequantize(DType::kF16, half.data(), n, out.data());
    EXPECT_TRUE(std::equal(x.begin(), x.end(), out.begin()));
    dequantize(DType::kBF16, brain.data(), n, out.data());
    EXPECT_TRUE(std::equal(x.begin(), x.end(), out.begin()));
    EXPECT_EQ(out[size_t(n)], -1.f);
  }
}

TEST(Dequantize, TypesWithoutARoutineAreNamed) {
  EXPECT_FALSE(supports_dequantize(DType::kI32));
  EXPECT_FALSE(supports_dequantize(DType::kF8E4M3));
  EXPECT_TRUE(supports_dequantize(DType::kF32));
  EXPECT_DEATH(dequantize(DType::kI32, nullptr, 0, nullptr), "i32 has no routine");
  float out[32];
  EXPECT_DEATH(dequantize(DType::kQ8_0, out, 31, out), "31 elements are not whole blocks of q8_0");
}

}  // namespace
}  // namespace se
