#include "sparse/store/kivi/quantise.h"

#include "device/cpu/isa.h"
#include "sparse/rows.h"
#include "sparse/store/kivi/restore.h"

namespace se::kivi {
namespace {

// (x - min) / scale as a code. 1.5 * 2^23 makes the hardware round to nearest even; NaN becomes 0.
inline uint8_t code_of(float x, float min, float scale, float top) {
  if (scale == 0) return 0;
  float c = (x - min) / scale;
  c = c > 0 ? c : 0;
  c = c < top ? c : top;
  return uint8_t((c + 12582912.f) - 12582912.f);
}

// The scale as stored; a range beyond f16's saturates.
inline uint16_t scale_bits(float range, float top) {
  uint16_t bits = 0;
  const float scale = range / top;
  narrow_row(DType::kF16, &scale, 1, &bits);
  return bits;
}

void pack(const uint8_t* one_per_byte, int n, int bits, uint8_t* out) {
  const int per = 8 / bits;
  for (int i = 0; i < n / per; ++i) {
    unsigned byte = 0;
    for (int j = 0; j < per; ++j) byte |= unsigned(one_per_byte[i * per + j]) << (j * bits);
    out[i] = uint8_t(byte);
  }
}

const Restore& restore() {
  return cpu::isa() >= cpu::Isa::kAvx512 ? kRestoreAvx512
         : cpu::isa() >= cpu::Isa::kAvx2 ? kRestoreAvx2
                                         : kRestoreRef;
}
MinType min_type_of(DType type) {
  SE_CHECK(
      type == DType::kF32 || type == DType::kF16 || type == DType::kBF16, "minima in {}", to_string(type));
  return type == DType::kF32 ? MinType::kF32 : type == DType::kF16 ? MinType::kF16 : MinType::kBF16;
}

}  // namespace

void encode_keys(const float* x,
                 int64_t stride,
                 int tokens,
                 int dim,
                 int bits,
                 DType min_type,
                 uint8_t* codes,
                 void* min,
                 uint16_t* scale) {
  SE_CHECK(dim <= kMaxDim, "head dimension {} > {}", dim, kMaxDim);
  const float top = float((1 << bits) - 1);
  float low[kMaxDim], high[kMaxDim], step[kMaxDim];
  std::copy_n(x, dim, low), std::copy_n(x, dim, high);
  for (int t = 1; t < tokens; ++t) {
    const float* row = x + t * stride;
    for (int d = 0; d < dim; ++d)
      low[d] = row[d] < low[d] ? row[d] : low[d], high[d] = row[d] > high[d] ? row[d] : high[d];
  }
  for (int d = 0; d < dim; ++d)
    low[d] += 0.f;  // -0 becomes +0: which of them is least must not depend on the order
  for (int d = 0; d < dim; ++d) scale[d] = scale_bits(high[d] - low[d], top), step[d] = f16_to_f32(scale[d]);
  narrow_row(min_type, low, dim, min);
  uint8_t row_codes[kMaxDim];
  for (int t = 0; t < tokens; ++t) {
    for (int d = 0; d < dim; ++d) row_codes[d] = code_of(x[t * stride + d], low[d], step[d], top);
    pack(row_codes, dim, bits, codes + t * (dim * bits / 8));
  }
}

void encode_values(const float* x,
                   int64_t stride,
                   int tokens,
                   int dim,
                   int group,
                   int bits,
                   DType min_type,
                   uint8_t* codes,
                   void* min,
                   uint16_t* scale) {
  SE_CHECK(dim <= kMaxDim, "head dimension {} > {}", dim, kMaxDim);
  const float top = float((1 << bits) - 1);
  const int groups = dim / group;
  float low[kMaxDim];
  uint8_t row_codes[kMaxDim];
  for (int t = 0; t < tokens; ++t) {
    const float* row = x + t * stride;
    for (int g = 0; g < groups; ++g) {
      const float* part = row + g * group;
      const auto [least, most] = std::minmax_element(part, part + group);
      low[g] = *least + 0.f;
      const uint16_t bits16 = scale_bits(*most - *least, top);
      scale[t * groups + g] = bits16;
      const float step = f16_to_f32(bits16);
      for (int i = 0; i < group; ++i) row_codes[g * group + i] = code_of(part[i], low[g], step, top);
    }
    narrow_row(min_type, low, groups, static_cast<char*>(min) + bytes_of(min_type, int64_t(t) * groups));
    pack(row_codes, dim, bits, codes + t * (dim * bits / 8));
  }
}

void decode_keys(const uint8_t* codes,
                 const void* min,
                 const uint16_t* scale,
                 int n,
                 int dim,
                 int bits,
                 DType min_type,
                 float* out,
                 int64_t stride) {
  restore().keys({codes, min, scale, n, dim, dim, bits, min_type_of(min_type)}, out, stride);
}

void decode_values(const uint8_t* codes,
                   const void* min,
                   const uint16_t* scale,
                   int n,
                   int dim,
                   int group,
                   int bits,
                   DType min_type,
                   float* out,
                   int64_t stride) {
  restore().values({codes, min, scale, n, dim, group, bits, min_type_of(min_type)}, out, stride);
}

}  // namespace se::kivi
