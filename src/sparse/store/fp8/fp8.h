// store/fp8/fp8.h -- OCP FP8 with scales computed on write: the number formats and the stage.
#pragma once
#include "sparse/contract.h"

namespace se {
namespace fp8 {

enum Format : int { kE4M3, kE5M2 };        // E4M3FN: no infinity, largest 448. E5M2: IEEE-like, largest 57344
enum Granularity : int { kHead, kToken };  // one scale per token and KV head, or per token
enum Prefill : int { kStored, kExact };    // what a prompt's chunk sees of itself
struct Config {
  int format = kE4M3, scale = kHead, prefill = kStored;
};

float largest(Format format);
// To the nearest code, ties to the even code; what is beyond the largest finite number becomes it, infinities
// too. NaN stays.
uint8_t encode(Format format, float x);
float decode(Format format, uint8_t code);  // exact

// The scale of n numbers: max |x| / largest, at least 1e-30. NaN does not count.
float scale_of(Format format, const float* x, int64_t n);
// codes[i] = encode(x[i] / scale); true division.
void encode_row(Format format, const float* x, int64_t n, float scale, uint8_t* codes);
// out[i] = decode(codes[i]) * scale, rounded once.
void decode_row(Format format, const uint8_t* codes, int64_t n, float scale, float* out);

}  // namespace fp8

extern const StageEntry stage_store_fp8;

}  // namespace se
