// kernels/attention/latent_items_cuda.cuh -- what the blocks of latent_decode_cuda.cu work on. Device code
// only.
//
// Items: listed rows in order, slices of heads, splits (at least one).
#pragma once
#include "device/cuda/mma.cuh"
#include "kernels/attention/latent_decode_params_cuda.h"

namespace se::cuda {
namespace {

constexpr int kHeads = kLatentHeads;

struct Item {
  int entry = -1, split_at = 0, slice = 0, token = 0;
  int first = 0, last = 0;  // places
  int64_t start = 0, offset = 0;
  __device__ __forceinline__ int tiles(int tile) const { return max(0, (last - first + tile - 1) / tile); }
};

// What find_item will wait for, from DRAM to L2 meanwhile: the lines of the first rows, and the runs.
__device__ __forceinline__ void ask_for(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}
__device__ __forceinline__ void ask_for_tables(const DecodeParams& p) {
  ask_for(p.counts), ask_for(p.split), ask_for(p.start), ask_for(p.q_start);
  if (p.offset) ask_for(p.offset);
}
__device__ __forceinline__ void ask_for_runs(const DecodeParams& p, int threads) {
  const int64_t run = (int64_t(blockIdx.x) * threads + threadIdx.x) * 16;
  if (run < p.run_count) ask_for(p.runs + run);
  const int64_t q = (int64_t(blockIdx.x) * threads + threadIdx.x) * 32;  // the rows' queries lie together
  if (q < p.cap * p.q_token) ask_for(p.q + q);
}

// All lanes of a warp; entry -1: no such item.
__device__ __forceinline__ Item find_item(const DecodeParams& p, int item, int lane) {
  const int slices = (p.group + kHeads - 1) / kHeads, n = *p.n;
  Item it;
  for (int base = 0; base < n; base += 32) {
    const int listed = base + lane;
    int row = listed < p.cap ? p.ids[listed] : 0, count = 0, split = 1, splits = 0, token = 0;
    int64_t start = 0, offset = 0;
    if (listed < n) {
      count = p.counts[row], split = p.split[row], start = p.start[row], token = p.q_start[row];
      if (p.offset) offset = p.offset[row];
      splits = max(1, ((count << p.unit_shift) + split - 1) / split);
    }
    int sum = splits * slices;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    const int all = __shfl_sync(~0u, sum, 31);
    if (item >= all) {
      item -= all;
      continue;
    }
    const int who = __popc(__ballot_sync(~0u, sum <= item));
    const int rest = item - __shfl_sync(~0u, sum - splits * slices, who);
    count = __shfl_sync(~0u, count, who), splits = __shfl_sync(~0u, splits, who);
    split = __shfl_sync(~0u, split, who);
    it.slice = rest / splits, it.split_at = rest - it.slice * splits;
    it.entry = (base + who) * slices + it.slice;
    it.first = it.split_at * split, it.last = min(it.first + split, count << p.unit_shift);
    it.start = __shfl_sync(~0u, start, who), it.offset = __shfl_sync(~0u, offset, who);
    it.token = __shfl_sync(~0u, token, who);
    return it;
  }
  return it;
}

}  // namespace
}  // namespace se::cuda
