// kernels/moe/choose_cuda.cuh -- which experts a row takes. Device code only.
#pragma once
#include <cstdint>

#include "kernels/moe/moe_cuda.h"

namespace se::cuda {

// Greater logits get greater keys; NaN gets 1, which no number has, and 0 is for what is not there.
__device__ __forceinline__ uint32_t key_of(float x) {
  const uint32_t u = __float_as_uint(x + 0.f);  // -0 ranks as +0
  const uint32_t key = u ^ (uint32_t(int32_t(u) >> 31) | 0x80000000u);
  return x != x ? 1 : key;
}
__device__ __forceinline__ float logit_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The top_k greatest of a row's logits, best first, ties to the lower expert, by one warp: chosen[top_k], in
// shared or device memory; no expert twice, whatever the logits. `list`: 64 words of shared memory of the
// warp's own.
//
// Latency is what counts: shuffles that do not depend on one another, and few instructions, for they are read
// from memory like anything else. What reaches the top_k-th best of the lanes' best keys is a short list that
// holds the top_k; they are ranked in it one by one.
__device__ __forceinline__ void choose(
    const float* logits, int experts, int top_k, uint32_t* list, int32_t* chosen) {
  constexpr int kOwn = kMoeExperts / 32;  // expert lane + 32 i
  const int lane = threadIdx.x % 32;
  uint32_t own[kOwn], top = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    own[i] = lane + 32 * i < experts ? key_of(logits[lane + 32 * i]) : 0;
    top = max(top, own[i]);
  }
  // By rank: greater keys, and equal ones of lower lanes.
  const auto rank = [&](uint32_t key, int n) {
    int before = 0;
#pragma unroll 8
    for (int i = 0; i < n; ++i) {
      const uint32_t other = __shfl_sync(~0u, key, i);
      before += other > key || (other == key && i < lane);
    }
    return before;
  };
  const unsigned last = __ballot_sync(~0u, rank(top, 32) == top_k - 1);
  uint32_t floor = __shfl_sync(~0u, top, __ffs(int(last)) - 1);
  int all = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {  // ascending experts
    const unsigned here = __ballot_sync(~0u, own[i] >= floor);
    const int at = all + __popc(here & ((1u << lane) - 1));
    if (own[i] >= floor && at < 32) list[at] = own[i], list[32 + at] = uint32_t(lane + 32 * i);
    all += __popc(here);
  }
  __syncwarp();
  const uint32_t key = lane < all ? list[lane] : 0;
  int expert = lane < all ? int(list[32 + lane]) : 0, place = lane;
  if (all <= 32) {
    place = rank(key, all);
    if (lane >= all) place = 32;
  } else {  // many equal ones: one after the other
#pragma unroll 1
    for (int j = 0; j < top_k; ++j) {
      uint32_t most = 0;
      unsigned at = kMoeExperts;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) most = max(most, own[i]);
      most = __reduce_max_sync(~0u, most);
#pragma unroll
      for (int i = kOwn - 1; i >= 0; --i)
        if (own[i] == most) at = lane + 32 * i;
      at = __reduce_min_sync(~0u, at);
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        if (lane + 32 * i == int(at)) own[i] = 0;
      if (lane == j) expert = int(at);
    }
  }
  if (place < top_k) chosen[place] = expert;
  __syncwarp();
}

// Their weights, by one warp: softmax over the chosen, or over all.
__device__ __forceinline__ void weigh(
    const float* logits, int experts, int top_k, bool over_chosen, const int32_t* chosen, float* weight) {
  const int lane = threadIdx.x % 32;
  const int mine = lane < top_k ? chosen[lane] : -1;
  const float logit = mine >= 0 ? logits[mine] : 0, most = __shfl_sync(~0u, logit, 0);
  const float w = mine >= 0 ? expf(logit - most) : 0;
  float sum = w;
  if (!over_chosen) {
#pragma unroll 1
    for (int base = 0; base < experts; base += 32) {
      bool other = base + lane < experts;
      for (int j = 0; j < top_k; ++j) other &= __shfl_sync(~0u, mine, j) != base + lane;
      if (other) sum += expf(logits[base + lane] - most);
    }
  }
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (mine >= 0) weight[lane] = w / sum;
}

}  // namespace se::cuda
