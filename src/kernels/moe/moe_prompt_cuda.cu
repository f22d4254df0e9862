// Order of pairs: blocks of 128 rows choose and count, then each block finds what lies before it and hands
// out places in the order of its pairs. Ladder: docs/performance.md.
#include <cuda_bf16.h>

#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/linear/block_gemm_cuda.h"
#include "kernels/moe/choose_cuda.cuh"
#include "kernels/moe/moe_prompt_cuda.h"

namespace se::cuda {
namespace {

constexpr int kBlockRows = 128, kWarps = 32, kThreads = kWarps * 32;
static_assert(kBlockRows * kMoeChosen <= kThreads);

struct OrderParams {
  const float* logits;
  int rows, experts, top_k;
  bool over_chosen;
  MoeOrder out;
};

__global__ __launch_bounds__(kThreads) void choose_kernel(const __grid_constant__ OrderParams p) {
  __shared__ int counts[kMoeExperts];
  __shared__ uint32_t lists[kWarps][64];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < p.experts; i += kThreads) counts[i] = 0;
  pdl_wait();
  pdl_release();
  __syncthreads();
  for (int i = warp; i < kBlockRows; i += kWarps) {
    const int row = blockIdx.x * kBlockRows + i;
    if (row >= p.rows) break;
    int32_t* chosen = p.out.expert + int64_t(row) * p.top_k;
    const float* logits = p.logits + int64_t(row) * p.experts;
    choose(logits, p.experts, p.top_k, lists[warp], chosen);
    weigh(logits, p.experts, p.top_k, p.over_chosen, chosen, p.out.weight + int64_t(row) * p.top_k);
    if (lane < p.top_k) atomicAdd(&counts[chosen[lane]], 1);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.experts; i += kThreads)
    p.out.counts[blockIdx.x * p.experts + i] = counts[i];
}

__global__ __launch_bounds__(kThreads) void place_kernel(const __grid_constant__ OrderParams p) {
  __shared__ int begin[kMoeExperts], carry[kMoeExperts / 32];
  __shared__ uint16_t of_warp[kWarps][kMoeExperts];  // pairs of each expert before this warp's, in the block
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, blocks = gridDim.x;
  for (int i = thread; i < kWarps * kMoeExperts; i += kThreads) of_warp[i / kMoeExperts][i % kMoeExperts] = 0;
  pdl_wait();
  pdl_release();
  int before = 0, all = 0, sum = 0;
  if (thread < kMoeExperts) {
    if (thread < p.experts)
      for (int b = 0; b < blocks; ++b) {
        const int n = p.out.counts[b * p.experts + thread];
        if (b < int(blockIdx.x)) before += n;
        all += n;
      }
    sum = all;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    if (lane == 31) carry[warp] = sum;
  }
  __syncthreads();
  if (thread < p.experts) {
    sum -= all;
    for (int w = 0; w < warp; ++w) sum += carry[w];
    begin[thread] = sum + before;
    if (blockIdx.x == 0) p.out.first[thread] = sum;
    if (blockIdx.x == 0 && thread == p.experts - 1) p.out.first[p.experts] = p.rows * p.top_k;
  }
  const int64_t pair = int64_t(blockIdx.x) * kBlockRows * p.top_k + thread;
  const bool mine = thread < kBlockRows * p.top_k && pair < int64_t(p.rows) * p.top_k;
  const int expert = mine ? p.out.expert[pair] : -1;
  const unsigned same = __match_any_sync(~0u, expert);
  const int rank = __popc(same & ((1u << lane) - 1));
  if (mine && rank == 0) of_warp[warp][expert] = uint16_t(__popc(same));
  __syncthreads();
  if (thread < p.experts) {
    int total = 0;
    for (int w = 0; w < kWarps; ++w) {
      const int n = of_warp[w][thread];
      of_warp[w][thread] = uint16_t(total);
      total += n;
    }
  }
  __syncthreads();
  if (mine) p.out.place[pair] = begin[expert] + of_warp[warp][expert] + rank;
}

// A block a row; 8 channels a thread.
__global__ __launch_bounds__(256) void combine_kernel(const __grid_constant__ MoePromptParams p) {
  const int row = blockIdx.x;
  pdl_wait();
  pdl_release();
  for (int at = threadIdx.x * 8; at < p.k; at += blockDim.x * 8) {
    uint4 v[kMoeChosen];
#pragma unroll
    for (int j = 0; j < kMoeChosen; ++j)
      if (j < p.top_k)
        v[j] = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.parts) +
                                               int64_t(p.order.place[int64_t(row) * p.top_k + j]) * p.k + at);
    float sum[8] = {};
#pragma unroll
    for (int j = 0; j < kMoeChosen; ++j) {
      if (j >= p.top_k) break;
      const float w = p.order.weight[int64_t(row) * p.top_k + j];
      const uint32_t x[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 f = unpack(x[i], __nv_bfloat16());
        sum[2 * i] += w * f.x, sum[2 * i + 1] += w * f.y;
      }
    }
    const float4* x = reinterpret_cast<const float4*>(p.x + int64_t(row) * p.k + at);
    float4* y = reinterpret_cast<float4*>(p.y + int64_t(row) * p.k + at);
    const float4 a = x[0], b = x[1];
    y[0] = {a.x + sum[0], a.y + sum[1], a.z + sum[2], a.w + sum[3]};
    y[1] = {b.x + sum[4], b.y + sum[5], b.z + sum[6], b.w + sum[7]};
  }
}

void check(const MoePromptParams& p) {
  if (p.rows >= 1 && p.k >= 128 && p.k % 128 == 0 && p.inner >= 128 && p.inner % 128 == 0 && p.top_k >= 1 &&
      p.top_k <= kMoeChosen && p.experts <= kMoeExperts)
    return;
  std::fprintf(
      stderr,
      "moe_prompt: %d rows of %d, %d of %d experts of %d: expected %d of %d experts at most, multiples of "
      "128\n",
      p.rows,
      p.k,
      p.top_k,
      p.experts,
      p.inner,
      kMoeChosen,
      kMoeExperts);
  std::abort();
}

}  // namespace

int64_t moe_order_counts(int rows, int experts) {
  return int64_t((rows + kBlockRows - 1) / kBlockRows) * experts;
}

void moe_order(const float* logits,
               int rows,
               int experts,
               int top_k,
               bool over_chosen,
               const MoeOrder& out,
               Stream& stream) {
  if (rows < 1 || experts < 1 || experts > kMoeExperts || top_k < 1 || top_k > kMoeChosen ||
      top_k > experts) {
    std::fprintf(stderr, "moe_order: %d rows, %d of %d experts\n", rows, top_k, experts);
    std::abort();
  }
  const OrderParams p{logits, rows, experts, top_k, over_chosen, out};
  const dim3 grid(unsigned((rows + kBlockRows - 1) / kBlockRows));
  launch(choose_kernel, grid, kThreads, 0, stream.get(), p);
  launch(place_kernel, grid, kThreads, 0, stream.get(), p);
}

void moe_prompt_sort(const MoePromptParams& p, Stream& stream) {
  check(p);
  BlockQuantiseParams q;
  q.x = p.x, q.norm = p.norm, q.eps = p.eps, q.rows = p.rows, q.k = p.k, q.place = p.order.place;
  q.copies = p.top_k, q.out_rows = p.rows * p.top_k, q.codes = p.h, q.scale = p.h_scale;
  block_quantise(q, stream);
}

void moe_prompt_up(const MoePromptParams& p, Stream& stream) {
  check(p);
  BlockGemmParams g;
  g.w = p.up, g.w_scale = p.up_scale, g.x = p.h, g.x_scale = p.h_scale, g.first = p.order.first;
  g.groups = p.experts, g.n = 2 * p.inner, g.k = p.k, g.rows = p.rows * p.top_k;
  g.product = p.product, g.product_scale = p.product_scale;
  block_gemm(g, stream);
}

void moe_prompt_down(const MoePromptParams& p, Stream& stream) {
  check(p);
  BlockGemmParams g;
  g.w = p.down, g.w_scale = p.down_scale, g.x = p.product, g.x_scale = p.product_scale,
  g.first = p.order.first;
  g.groups = p.experts, g.n = p.k, g.k = p.inner, g.rows = p.rows * p.top_k, g.y16 = p.parts;
  block_gemm(g, stream);
}

void moe_prompt_combine(const MoePromptParams& p, Stream& stream) {
  check(p);
  launch(combine_kernel, dim3(unsigned(p.rows)), 256, 0, stream.get(), p);
}

}  // namespace se::cuda
