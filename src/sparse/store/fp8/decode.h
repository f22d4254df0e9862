// decode.h -- FP8 codes back to numbers, one table per instruction set. Plain types only: the files of a
// level must share no inline code with baseline files. All tables agree bit for bit.
#pragma once
#include <cstdint>

namespace se::fp8 {

// out[i] = value(codes[i]) * scale, rounded once, i < n.
struct Decode {
  void (*e4m3)(const uint8_t* codes, int64_t n, float scale, float* out);
  void (*e5m2)(const uint8_t* codes, int64_t n, float scale, float* out);
};
extern const Decode kDecodeBaseline, kDecodeAvx2, kDecodeAvx512;

}  // namespace se::fp8
