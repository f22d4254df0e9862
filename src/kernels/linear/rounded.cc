// Activations rounded to BF16, and rows of BF16 weights in the same order: linear_routines.h, `rounded`.
#include <cstring>

#include "base/half.h"
#include "kernels/linear/linear_routines.h"

namespace se::linear_detail {
namespace {

// 32 elements: the odd ones, then the even ones.
inline void part(const uint16_t* from, float* to) {
  for (int i = 0; i < kPart / 2; ++i) {
    uint32_t pair;
    std::memcpy(&pair, from + 2 * i, 4);
    const uint32_t odd = pair & 0xffff0000u, even = pair << 16;
    std::memcpy(to + i, &odd, 4), std::memcpy(to + kPart / 2 + i, &even, 4);
  }
}

}  // namespace

void round_token(const float* x, int64_t in, uint16_t* to) {
  for (int64_t i = 0; i < in; ++i) to[i] = f32_to_bf16(x[i]);
  std::memset(to + in, 0, size_t(rounded_stride(in) - in) * sizeof *to);
}

void part_row(const void* row, int64_t in, float* to) {
  const char* p = static_cast<const char*>(row);
  uint16_t some[kPart] = {};
  int64_t i = 0;
  for (; i + kPart <= in; i += kPart) {
    std::memcpy(some, p + 2 * i, sizeof some);
    part(some, to + i);
  }
  if (i == in) return;
  std::memset(some, 0, sizeof some);
  std::memcpy(some, p + 2 * i, size_t(in - i) * 2);
  part(some, to + i);
}

}  // namespace se::linear_detail
