// kernels/sample/sample.h -- from logits to a token. Deterministic: ties go to the lower id, random numbers
// depend on (seed, choice, position) alone (base/rng.h), so neither batch mates nor arrival change an answer.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace se {

struct SampleParams {
  float temperature = 0;  // below 1e-5: greedy
  int top_k = 0;          // 0: off
  float top_p = 1, min_p = 0;
  uint64_t seed = 0;
  uint64_t choice = 0;  // index of the choice within its request
};

// The token for `position` (that of the token being sampled). Filters in vLLM's order: temperature, min_p,
// top_k, top_p. Kept: top_k best; the fewest whose probability reaches top_p; those with p >= min_p * p_max.
// Each filter sees the probabilities that the one before left, renormalised; ties at a cut go to the lower
// id. min_p is compared as (logit - max) / temperature >= log(min_p) in f32. The draw runs over ids in order,
// with weights of plain f32 steps and sums in double: the same token on every machine. logits f32 [vocab];
// NaN ranks last and is never drawn; all NaN is the caller's bug. O(vocab), no sort of all of it.
int32_t sample(std::span<const float> logits, const SampleParams& params, uint64_t position);
int32_t argmax(std::span<const float> logits);  // lowest id among equals

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};
// Raw log-probabilities (before temperature): of `id` (-inf for NaN), and of the n best, best first (ties:
// lower id; NaN is left out, so fewer than n where there are fewer numbers).
float logprob_of(std::span<const float> logits, int32_t id);
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int n);

}  // namespace se
