// kernels/moe/choose_cuda.cuh -- which experts a row takes. Device code only.
#pragma once
#include <cstdint>

#include "kernels/moe/moe_cuda.h"

namespace se::cuda {

// Greater logits get greater keys; NaN gets 0, which no number has.
__device__ __forceinline__ uint32_t key_of(float x) {
  if (x != x) return 0;
  const uint32_t u = __float_as_uint(x == 0 ? 0.f : x);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The top_k greatest of a row's logits, best first, ties to the lower expert, and their weights, by one warp;
// lane l holds logits l + 32 i. Both: [top_k].
template <int kOwn>
__device__ __forceinline__ void choose(
    const float* logits, int experts, int top_k, bool over_chosen, float* weight, int32_t* chosen) {
  const int lane = threadIdx.x % 32;
  uint32_t own[kOwn], best[kMoeChosen];
  int which[kMoeChosen];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) own[i] = lane + 32 * i < experts ? key_of(logits[lane + 32 * i]) : 0;
#pragma unroll
  for (int j = 0; j < kMoeChosen; ++j) {
    if (j >= top_k) break;
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) most = max(most, own[i]);
    most = __reduce_max_sync(~0u, most);
    unsigned at = experts;
#pragma unroll
    for (int i = kOwn - 1; i >= 0; --i)
      if (own[i] == most && most != 0) at = lane + 32 * i;
    at = __reduce_min_sync(~0u, at);
    best[j] = most, which[j] = most ? int(at) : j;  // nothing but NaN is left: any will do
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (lane + 32 * i == int(at)) own[i] = 0;
  }
  const float top = logit_of(best[0]);
  float all = 0, mine = 0;
  int expert = 0;
#pragma unroll
  for (int j = 0; j < kMoeChosen; ++j) {
    if (j >= top_k) break;
    const float w = expf(logit_of(best[j]) - top);
    all += w;
    if (lane == j) mine = w, expert = which[j];
  }
  if (!over_chosen) {
    float rest = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (own[i] != 0) rest += expf(logit_of(own[i]) - top);
    for (int d = 16; d > 0; d /= 2) rest += __shfl_xor_sync(~0u, rest, d);
    all += rest;
  }
  if (lane < top_k) {
    weight[lane] = mine / all;
    chosen[lane] = expert;
  }
}

}  // namespace se::cuda
