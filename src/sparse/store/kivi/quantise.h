// quantise.h -- asymmetric integer codes of one group of tokens of one KV head.
//
//   scale = f16((max - min) / (2^bits - 1));
//   code = rne(clamp((x - min) / scale, 0, 2^bits - 1)), 0 where scale is 0;
//   decoded = min + code * scale, the product and the sum rounded each.
//
// All in f32, true division; codes are computed with the scale as it is stored. min is one of the inputs, so
// its type (that of the inputs) holds it exactly. Codes lie along the channels: code d of a token in byte d *
// bits / 8, lowest bits first (little-endian words of 32 / bits codes). `group` and `dim` are multiples of 8.
// Spec: methods-compressed.md 1.3, 3.5, 13.2; Liu et al. 2024.
#pragma once
#include <cstdint>

#include "device/tensor.h"

namespace se::kivi {

// x f32 [tokens, dim] with `stride` floats between tokens; codes [tokens, dim * bits / 8], min [dim], scale
// f16 [dim].
void encode_keys(const float* x,
                 int64_t stride,
                 int tokens,
                 int dim,
                 int bits,
                 DType min_type,
                 uint8_t* codes,
                 void* min,
                 uint16_t* scale);
// codes [tokens, dim * bits / 8], min and scale [tokens, dim / group].
void encode_values(const float* x,
                   int64_t stride,
                   int tokens,
                   int dim,
                   int group,
                   int bits,
                   DType min_type,
                   uint8_t* codes,
                   void* min,
                   uint16_t* scale);

// out f32 [n, dim] with `stride` floats between tokens, of n tokens whose codes start at `codes`; min, scale
// [dim].
void decode_keys(const uint8_t* codes,
                 const void* min,
                 const uint16_t* scale,
                 int n,
                 int dim,
                 int bits,
                 DType min_type,
                 float* out,
                 int64_t stride);
// min and scale [n, dim / group].
void decode_values(const uint8_t* codes,
                   const void* min,
                   const uint16_t* scale,
                   int n,
                   int dim,
                   int group,
                   int bits,
                   DType min_type,
                   float* out,
                   int64_t stride);

inline constexpr int kMaxDim = 1024;  // of a head

}  // namespace se::kivi
