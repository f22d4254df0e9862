// format.cc -- the two FP8 formats. Spec: methods-compressed.md 2.2 and 13.1; OCP 8-bit Floating Point
// Specification 1.0.
#include <bit>
#include <cmath>

#include "device/cpu/isa.h"
#include "sparse/store/fp8/decode.h"
#include "sparse/store/fp8/fp8.h"

namespace se::fp8 {
namespace {

struct Shape {
  int mantissa, bias;  // bits; of the exponent
  uint8_t top;         // code of the largest finite number
  float largest;
};
constexpr Shape kShapes[] = {{3, 7, 0x7e, 448}, {2, 15, 0x7b, 57344}};
constexpr uint8_t kNan = 0x7f;  // a NaN in both formats

const Decode& decoder() {
  return cpu::isa() >= cpu::Isa::kAvx512 ? kDecodeAvx512
         : cpu::isa() >= cpu::Isa::kAvx2 ? kDecodeAvx2
                                         : kDecodeBaseline;
}

}  // namespace

float largest(Format format) { return kShapes[format].largest; }

uint8_t encode(Format format, float x) {
  const Shape& shape = kShapes[format];
  const uint32_t u = std::bit_cast<uint32_t>(x), a = u & 0x7fffffffu;
  const uint8_t sign = uint8_t(u >> 24 & 0x80);
  if (a > 0x7f800000u) return sign | kNan;
  const float magnitude = std::bit_cast<float>(a);
  if (magnitude >= shape.largest) return sign | shape.top;
  const uint32_t shift = uint32_t(23 - shape.mantissa), rebias = uint32_t(127 - shape.bias) << 23;
  if (a < rebias + (1u << 23)) {
    // Below the least normal number codes are multiples of 2^(1 - bias - mantissa): a sum whose unit in the
    // last place is that makes the hardware round. The code that follows the last subnormal is the first
    // normal one.
    const float unit = std::bit_cast<float>(uint32_t(127 + 1 - shape.bias - shape.mantissa) << 23);
    const float magic = unit * 0x1p23f;
    return sign | uint8_t(std::bit_cast<uint32_t>(magnitude + magic) - std::bit_cast<uint32_t>(magic));
  }
  const uint32_t odd = a >> shift & 1;
  const uint32_t code = (a - rebias + (1u << (shift - 1)) - 1 + odd) >> shift;
  return sign | uint8_t(code > shape.top ? shape.top : code);
}

float decode(Format format, uint8_t code) {
  float x = 0;
  decode_row(format, &code, 1, 1.f, &x);
  return x;
}

float scale_of(Format format, const float* x, int64_t n) {
  float top = 0;
  for (int64_t i = 0; i < n; ++i) top = std::fabs(x[i]) > top ? std::fabs(x[i]) : top;
  top = top > 0x1.fffffep127f ? 0x1.fffffep127f : top;  // infinities are stored as the largest number
  const float scale = top / largest(format);
  return scale > 1e-30f ? scale : 1e-30f;
}

void encode_row(Format format, const float* x, int64_t n, float scale, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = encode(format, x[i] / scale);
}

void decode_row(Format format, const uint8_t* codes, int64_t n, float scale, float* out) {
  (format == kE4M3 ? decoder().e4m3 : decoder().e5m2)(codes, n, scale, out);
}

}  // namespace se::fp8
