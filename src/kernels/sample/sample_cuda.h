// kernels/sample/sample_cuda.h -- sample of sample.h for many rows on CUDA, each with parameters of its own.
//
// The same token as sample() draws: weights are the same f32 bits, top-k and its ties the same, and so are
// the sums of top_p where they decide (integers of one binary exponent). The sums of the draw are doubles in
// another order, so a token can differ where u times the total lies within about 1e-13 of a token's edge.
// Deterministic; a row's token depends on nothing but its logits and its SampleRow.
#pragma once
#include <cstdint>

namespace se {

struct SampleParams;

namespace cuda {

class Stream;

struct SampleRow {  // what a row asks for; lies in device memory, so that a captured step reads fresh values
  float temperature = 0, top_p = 1;
  float lowest = 0;  // least (logit - max) / temperature that min_p leaves
  int32_t top_k = 0;
  uint64_t seed = 0, choice = 0, position = 0;
};
SampleRow sample_row(const SampleParams& params, uint64_t position);  // host

inline constexpr int64_t kSampleVocab = 387'000;  // most logits of a row

struct SampleLaunch {
  const float* logits = nullptr;  // f32 [rows, ..], row r at logits + r * logits_row
  int64_t logits_row = 0, vocab = 0;
  int rows = 0;
  const SampleRow* row = nullptr;  // [rows]
  int32_t* token = nullptr;        // out: i32 [rows]; all NaN: 0
};
// Aborts on a vocabulary over kSampleVocab.
void sample(const SampleLaunch& params, Stream& stream);

}  // namespace cuda
}  // namespace se
