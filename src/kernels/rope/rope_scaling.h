// kernels/rope/rope_scaling.h -- the frequency tables of long-context checkpoints (spec/models.md 2.3.1 to
// 2.3.3): plain, linear, llama3 and YaRN. Static: one table for all positions.
#pragma once
#include <cstdint>
#include <vector>

namespace se {

struct RopeParameters {
  enum class Kind : uint8_t { kNone, kLinear, kLlama3, kYarn };
  Kind kind = Kind::kNone;
  double factor = 1;                     // how much longer than trained
  double original = 0;                   // tokens of context before scaling (llama3, YaRN)
  double low = 1, high = 4;              // llama3: low_freq_factor, high_freq_factor
  double beta_fast = 32, beta_slow = 1;  // YaRN: turns over the original context
  bool truncate = true;                  // YaRN: the two bounds are whole channels
  // YaRN: what cos and sin are multiplied by. 0: from the two mscales where both are given, else 0.1 ln
  // factor
  // + 1.
  double attention_factor = 0;
  double mscale = 0, mscale_all = 0;  // DeepSeek; 0: not given
};

struct RopeTable {
  std::vector<float> frequencies;  // [dim / 2] inverse frequencies, computed in double, rounded once
  float amplitude = 1;             // of cos and sin: scores grow by its square where all channels rotate
};

// dim even, theta > 1; divisors [dim / 2] divide the plain frequencies where given (GGUF rope_freqs).
RopeTable rope_table(int dim, double theta, const RopeParameters& scaling, const float* divisors = nullptr);

// YaRN's 0.1 mscale ln factor + 1; 1 for factors up to 1. DeepSeek-style attention multiplies its softmax
// scale by the square of that of mscale_all.
double yarn_mscale(double factor, double mscale);

}  // namespace se
