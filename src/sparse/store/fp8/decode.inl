// decode.inl -- the loops of Decode, for the compiler to vectorise for the level of the including file.
//
// A code's exponent and mantissa bits, shifted to where F32 has them, are the number times 2^-(127 - bias):
// one multiplication by a power of two rebiases, and subnormals come out right. Without branches.
#include "sparse/store/fp8/decode.h"

namespace {

inline float as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

template <int kMantissa, int kBias>
inline float decode_finite(uint8_t code) {
  const uint32_t bits = uint32_t(code & 0x7f) << (23 - kMantissa) | uint32_t(code & 0x80) << 24;
  return as_float(bits) * as_float(uint32_t(127 + 127 - kBias) << 23);
}
inline float decode_e4m3(uint8_t code) {
  const float nan = as_float(0x7fc00000u), value = decode_finite<3, 7>(code);
  return (code & 0x7f) == 0x7f ? nan : value;
}
inline float decode_e5m2(uint8_t code) {  // exponent 31: infinity and NaN, as in F32
  const float special = as_float(0x7f800000u | uint32_t(code & 3) << 21 | uint32_t(code & 0x80) << 24);
  const float value = decode_finite<2, 15>(code);
  return (code & 0x7f) >= 0x7c ? special : value;
}

void e4m3(const uint8_t* codes, int64_t n, float scale, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = decode_e4m3(codes[i]) * scale;
}
void e5m2(const uint8_t* codes, int64_t n, float scale, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = decode_e5m2(codes[i]) * scale;
}

}  // namespace
