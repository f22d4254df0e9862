#include "model/testing/tiny_tensor.h"

#include <algorithm>
#include <cmath>

#include "base/half.h"
#include "model/testing/gguf_writer.h"

namespace se {
namespace {

constexpr int64_t kBlock = 32;  // elements of Q8_0 and Q4_1

// Encodes one block and replaces its values by what the code stands for (spec/models.md 8.2).
void encode_q8_0(float* x, GgufBytes& out) {
  float peak = 0;
  for (int64_t i = 0; i < kBlock; ++i) peak = std::max(peak, std::fabs(x[i]));
  const uint16_t half = f32_to_f16(peak / 127);
  const float d = f16_to_f32(half);
  out.put(half);
  for (int64_t i = 0; i < kBlock; ++i) {
    const int8_t q = d > 0 ? int8_t(std::clamp(std::nearbyint(x[i] / d), -127.0f, 127.0f)) : int8_t(0);
    out.put(q);
    x[i] = d * float(q);
  }
}

void encode_q4_1(float* x, GgufBytes& out) {
  const auto [low, high] = std::minmax_element(x, x + kBlock);
  const uint16_t d_half = f32_to_f16((*high - *low) / 15), m_half = f32_to_f16(*low);
  const float d = f16_to_f32(d_half), m = f16_to_f32(m_half);
  uint8_t q[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) {
    q[i] = d > 0 ? uint8_t(std::clamp(std::nearbyint((x[i] - m) / d), 0.0f, 15.0f)) : uint8_t(0);
    x[i] = d * float(q[i]) + m;
  }
  out.put(d_half).put(m_half);
  for (int64_t i = 0; i < kBlock / 2; ++i) out.put(uint8_t(q[i] | q[i + kBlock / 2] << 4));
}

}  // namespace

std::string encode_tiny(DType dtype, std::vector<float>& values) {
  GgufBytes out;
  const int64_t n = int64_t(values.size());
  if (dtype == DType::kF32) {
    for (const float v : values) out.put(v);
  } else if (dtype == DType::kF16) {
    for (float& v : values) {
      const uint16_t half = f32_to_f16(v);
      out.put(half);
      v = f16_to_f32(half);
    }
  } else if (dtype == DType::kBF16) {
    for (float& v : values) {
      const uint16_t half = f32_to_bf16(v);
      out.put(half);
      v = bf16_to_f32(half);
    }
  } else {
    SE_CHECK(
        dtype == DType::kQ8_0 || dtype == DType::kQ4_1, "encode_tiny does not write {}", to_string(dtype));
    SE_CHECK(n % kBlock == 0, "{} elements are not whole blocks", n);
    for (int64_t i = 0; i < n; i += kBlock)
      (dtype == DType::kQ8_0 ? encode_q8_0 : encode_q4_1)(&values[size_t(i)], out);
  }
  return out.data();
}

}  // namespace se
