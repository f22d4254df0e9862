// kernels/attn_scores/core.h -- the passes over one row of logits, one table per instruction set. Internal.
// Sums go by lane (index % 8) over stretches of 1024 in f32, the stretches in double, ascending: the order
// depends on the range alone.
#pragma once
#include <cstdint>

namespace se::cpu {

struct ScoresCore {
  float (*largest)(const float* x, int64_t n);  // -inf if n is 0
  // x <- exp(scale * x - shift); returns the sum.
  double (*exp_sum)(float* x, int64_t n, float scale, float shift);
  void (*divide)(float* x, int64_t n, float by);
  void (*add)(float* to, const float* x, int64_t n);
  void (*raise)(float* to, const float* x, int64_t n);  // to <- max(to, x)
};

extern const ScoresCore kScoresBaseline;
extern const ScoresCore kScoresAvx2;

}  // namespace se::cpu
