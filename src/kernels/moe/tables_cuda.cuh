// kernels/moe/tables_cuda.cuh -- what a block of the experts' kernels must know: who takes which expert.
// Device code only.
#pragma once
#include <cstdint>

#include "kernels/moe/choose_cuda.cuh"
#include "kernels/moe/moe_cuda.h"

namespace se::cuda {

constexpr int kTaskPairs = 8, kMostPairs = kMoeRows * kMoeChosen, kTableWarps = 20;
constexpr int kMostTasks = kMoeExperts + kMostPairs / kTaskPairs;

// Pair r * top_k + j is the j-th best expert of row r. Task t has pairs[first[t]] .. pairs[first[t + 1]] of
// expert experts[t]; pairs of an expert go by row.
struct Tables {
  int32_t tasks, chosen[kMostPairs];
  int16_t experts[kMostTasks], first[kMostTasks + 1], pairs[kMostPairs], rows[kMostPairs];
};
static_assert(sizeof(Tables) % 4 == 0 && sizeof(Tables) <= kMoeTables);
struct Work {                     // to make them
  uint32_t mask[2][kMoeExperts];  // rows that chose an expert
  uint32_t lists[kTableWarps][64];
  int32_t begin[kMoeExperts], carry[4];
};
// All threads, 128 at least; ends with a barrier.
__device__ __forceinline__ void make_tables(const ExpertParams& p, Tables& t, Work& w) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, pairs = p.rows * p.top_k;
  for (int i = thread; i < 2 * kMoeExperts; i += blockDim.x) (&w.mask[0][0])[i] = 0;
#pragma unroll 1
  for (int r = warp; r < p.rows; r += blockDim.x / 32)
    choose(p.logits + r * p.experts, p.experts, p.top_k, w.lists[warp], t.chosen + r * p.top_k);
  __syncthreads();
  if (p.rows == 1) {  // each choice is a task
    if (thread < pairs) {
      t.experts[thread] = int16_t(t.chosen[thread]), t.first[thread] = int16_t(thread);
      t.pairs[thread] = int16_t(thread), t.rows[thread] = 0;
    }
    if (thread == 0) t.tasks = pairs, t.first[pairs] = int16_t(pairs);
    __syncthreads();
    return;
  }
  if (pairs <= 32 && p.rows <= kTaskPairs) {  // a lane each: equal experts are a task
    if (warp == 0) {
      const int expert = lane < pairs ? t.chosen[lane] : -1 - lane;
      const unsigned same = __match_any_sync(~0u, expert), below = (1u << lane) - 1;
      const int leader = __ffs(int(same)) - 1;
      const unsigned leaders = __ballot_sync(~0u, lane == leader && lane < pairs);
      int sum = lane == leader && lane < pairs ? __popc(same) : 0;
      const int own = sum;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += other;
      }
      const int begin = __shfl_sync(~0u, sum - own, leader), at = begin + __popc(same & below);
      const int task = __popc(leaders & below);
      if (lane < pairs) {
        t.pairs[at] = int16_t(lane), t.rows[at] = int16_t(lane / p.top_k);
        if (lane == leader) t.experts[task] = int16_t(expert), t.first[task] = int16_t(begin);
      }
      if (lane == 0) t.tasks = __popc(leaders), t.first[__popc(leaders)] = int16_t(pairs);
    }
    __syncthreads();
    return;
  }
#pragma unroll 1
  for (int i = thread; i < pairs; i += blockDim.x) {
    const int row = i / p.top_k;
    atomicOr(&w.mask[row / 32][t.chosen[i]], 1u << row % 32);
  }
  __syncthreads();
  // Two experts a thread; pairs and tasks, side by side.
  int own[2] = {}, sum = 0;
  if (thread < 128) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int e = 2 * thread + i, count = __popc(w.mask[0][e]) + __popc(w.mask[1][e]);
      own[i] = count << 16 | (count + kTaskPairs - 1) / kTaskPairs;
    }
    sum = own[0] + own[1];
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    if (lane == 31) w.carry[warp] = sum;
  }
  __syncthreads();
  if (thread < 128) {
    int before = sum - own[0] - own[1];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < warp) before += w.carry[i];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int e = 2 * thread + i, task = before & 0xffff, tasks = own[i] & 0xffff;
      w.begin[e] = before >> 16;
#pragma unroll 1
      for (int j = 0; j < tasks; ++j)
        t.experts[task + j] = int16_t(e), t.first[task + j] = int16_t((before >> 16) + j * kTaskPairs);
      before += own[i];
    }
    if (thread == 127) t.tasks = before & 0xffff, t.first[before & 0xffff] = int16_t(pairs);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = thread; i < pairs; i += blockDim.x) {
    const int e = t.chosen[i], row = i / p.top_k;
    const uint32_t low = w.mask[0][e], high = w.mask[1][e], below = (1u << row % 32) - 1;
    const int at = w.begin[e] + (row < 32 ? __popc(low & below) : __popc(low) + __popc(high & below));
    t.pairs[at] = int16_t(i), t.rows[at] = int16_t(row);
  }
  __syncthreads();
}

}  // namespace se::cuda
