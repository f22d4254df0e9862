#include "sparse/store/kivi/quantise.h"

#include "sparse/rows.h"

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

// Codes as f32, one per element; straight loops that the compiler vectorises.
void unpack(const uint8_t* codes, int n, int bits, float* out) {
  if (bits == 4) {
    for (int i = 0; i < n / 2; ++i) out[2 * i] = float(codes[i] & 15), out[2 * i + 1] = float(codes[i] >> 4);
  } else {
    for (int i = 0; i < n / 4; ++i) {
      for (int j = 0; j < 4; ++j) out[4 * i + j] = float(codes[i] >> (2 * j) & 3);
    }
  }
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
  float low[kMaxDim], step[kMaxDim], code[kMaxDim];
  widen_row(min_type, min, dim, low);
  widen_row(DType::kF16, scale, dim, step);
  for (int t = 0; t < n; ++t) {
    unpack(codes + t * (dim * bits / 8), dim, bits, code);
    float* row = out + t * stride;
    for (int d = 0; d < dim; ++d) row[d] = low[d] + code[d] * step[d];
  }
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
  const int groups = dim / group;
  float low[kMaxDim], step[kMaxDim], code[kMaxDim];
  for (int t = 0; t < n; ++t) {
    widen_row(min_type, static_cast<const char*>(min) + bytes_of(min_type, int64_t(t) * groups), groups, low);
    widen_row(DType::kF16, scale + t * groups, groups, step);
    unpack(codes + t * (dim * bits / 8), dim, bits, code);
    float* row = out + t * stride;
    for (int g = 0; g < groups; ++g) {
      for (int i = g * group; i < (g + 1) * group; ++i) row[i] = low[g] + code[i] * step[g];
    }
  }
}

}  // namespace se::kivi
