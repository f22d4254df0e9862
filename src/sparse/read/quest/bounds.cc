#include "sparse/read/quest/bounds.h"

#include "sparse/rows.h"

namespace se::quest {
namespace {

// The next narrow number below (up: above) the finite one with these bits; F16 and BF16 are ordered alike by
// their bits.
uint16_t step(uint16_t bits, bool up) {
  if ((bits & 0x7fff) == 0) return up ? 0x0001 : 0x8001;
  const bool grows = (bits < 0x8000) == up;  // in magnitude
  return uint16_t(grows ? bits + 1 : bits - 1);
}

void round_outwards(DType type, const float* x, int64_t dim, bool up, void* out) {
  if (type == DType::kF32) return widen_row(type, x, dim, static_cast<float*>(out));
  SE_CHECK(type == DType::kF16 || type == DType::kBF16, "bounds in {}", to_string(type));
  uint16_t* h = static_cast<uint16_t*>(out);
  for (int64_t d = 0; d < dim; ++d) {
    h[d] = type == DType::kF16 ? f32_to_f16(x[d]) : f32_to_bf16(x[d]);
    const float got = type == DType::kF16 ? f16_to_f32(h[d]) : bf16_to_f32(h[d]);
    if (up ? got < x[d] : got > x[d]) h[d] = step(h[d], up);
  }
}

}  // namespace

void bound_keys(const float* x, int64_t stride, int64_t tokens, int64_t dim, DType type, void* lo, void* hi) {
  constexpr int64_t kBlock = 256;
  for (int64_t d = 0; d < dim; d += kBlock) {
    const int64_t n = std::min(kBlock, dim - d);
    float least[kBlock], most[kBlock];
    std::copy_n(x + d, n, least), std::copy_n(x + d, n, most);
    for (int64_t t = 1; t < tokens; ++t) {
      const float* row = x + t * stride + d;
      for (int64_t i = 0; i < n; ++i) {
        least[i] = row[i] < least[i] ? row[i] : least[i];
        most[i] = row[i] > most[i] ? row[i] : most[i];
      }
    }
    const int64_t at = bytes_of(type, d);
    round_outwards(type, least, n, false, static_cast<char*>(lo) + at);
    round_outwards(type, most, n, true, static_cast<char*>(hi) + at);
  }
}

Narrow narrow_of(DType type) {
  SE_CHECK(
      type == DType::kF32 || type == DType::kF16 || type == DType::kBF16, "bounds in {}", to_string(type));
  return type == DType::kF32 ? Narrow::kF32 : type == DType::kF16 ? Narrow::kF16 : Narrow::kBF16;
}

}  // namespace se::quest
