// A cluster of 8 blocks computes the logits of one row, a warp takes every 128th expert; its first block
// chooses for the row, and the last of these blocks to finish makes the lists. Gate weights are on their way
// before the kernel waits for its predecessor.
#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/rows.cuh"
#include "device/cuda/stream.h"
#include "kernels/moe/choose_cuda.cuh"
#include "kernels/moe/moe_cuda.h"

namespace se::cuda {
namespace {

constexpr int kBlocks = 8, kWarps = 16, kThreads = kWarps * 32, kStride = kBlocks * kWarps, kMostLoads = 16;

// Tasks in ascending order of experts, with their pairs; thread e looks after expert e.
__device__ void list(const RouteParams& p, const int32_t* chosen, int* carry) {
  const int pairs = p.rows * p.top_k, e = threadIdx.x, lane = e % 32, warp = e / 32;
  int count = 0;
  for (int i = 0; i < pairs; ++i) count += chosen[i] == e;
  const int own = count << 16 | (count + kMoeTaskPairs - 1) / kMoeTaskPairs;  // pairs and tasks, side by side
  int sum = own;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += other;
  }
  if (lane == 31) carry[warp] = sum;
  __syncthreads();
  int before = sum - own, all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += carry[w];
    all += carry[w];
  }
  if (e == 0) p.out.tasks[0] = all & 0xffff, p.out.first[all & 0xffff] = pairs;
  int at = before >> 16;
  for (int t = 0; t < (own & 0xffff); ++t) {
    p.out.tasks[1 + (before & 0xffff) + t] = e;
    p.out.first[(before & 0xffff) + t] = at + t * kMoeTaskPairs;
  }
  const int tasks = all & 0xffff;
  for (int t = tasks + e; t < min(pairs, p.experts) + pairs / kMoeTaskPairs; t += kThreads)
    p.out.tasks[1 + t] = 0, p.out.first[1 + t] = pairs;  // no such tasks
  for (int i = 0; i < pairs && count > 0; ++i)
    if (chosen[i] == e) p.out.pairs[at++] = i;
}

template <int kLoads, int kMany>
__global__ __launch_bounds__(kThreads) void route_kernel(const __grid_constant__ RouteParams p) {
  __shared__ __align__(16) float h[kLoads * 256];
  __shared__ float sums[kWarps], logits[kMoeExperts];
  __shared__ int32_t chosen[kMoeRows * kMoeChosen];
  __shared__ int carry[kWarps];
  __shared__ bool last_one;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.y;
  const int expert = blockIdx.x * kWarps + warp, loads = p.k / 256;
  cluster_arrive();
  uint4 w[kMany][kLoads];
  const auto load = [&](int e) {
    const char* gate =
        static_cast<const char*>(p.gate) + int64_t(min(expert + e * kStride, p.experts - 1)) * p.k * 2;
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      if (i < loads) w[e][i] = stream16(gate + (i * 32 + lane) * 16);
  };
#pragma unroll
  for (int e = 0; e < kMany; ++e) load(e);
  pdl_wait();
  pdl_release();
  take_rows<1>(p.x, p.k, row, p.rows, p.norm, p.eps, sums, [&](int, int at, const float4& v) {
    *reinterpret_cast<float4*>(h + at) = v;
    if (blockIdx.x == 0)
      *reinterpret_cast<uint2*>(p.h + int64_t(row) * p.k + at) = {pack(v.x, v.y, __half()),
                                                                  pack(v.z, v.w, __half())};
  });
  __syncthreads();
  cluster_wait();
#pragma unroll
  for (int e = 0; e < kMany; ++e) {
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (i >= loads) break;
      const uint4& x = w[e][i];
      const float4 a = *reinterpret_cast<const float4*>(h + (i * 32 + lane) * 8);
      const float4 b = *reinterpret_cast<const float4*>(h + (i * 32 + lane) * 8 + 4);
      const float2 w0 = unpack(x.x, __nv_bfloat16()), w1 = unpack(x.y, __nv_bfloat16());
      const float2 w2 = unpack(x.z, __nv_bfloat16()), w3 = unpack(x.w, __nv_bfloat16());
      dot += (a.x * w0.x + a.y * w0.y + a.z * w1.x + a.w * w1.y) +
             (b.x * w2.x + b.y * w2.y + b.z * w3.x + b.w * w3.y);
    }
    for (int d = 16; d > 0; d /= 2) dot += __shfl_xor_sync(~0u, dot, d);
    if (lane == 0 && expert + e * kStride < p.experts) store_in_block(logits + expert + e * kStride, 0, dot);
  }
  cluster_arrive();
  cluster_wait();
  if (blockIdx.x > 0) return;
  if (p.logits)
    for (int i = threadIdx.x; i < p.experts; i += kThreads) p.logits[row * p.experts + i] = logits[i];
  if (warp == 0)
    choose<kMany * 4>(logits, p.experts, p.top_k, p.over_chosen, p.out.weight + row * p.top_k, chosen);
  if (warp == 0 && lane < p.top_k) p.out.expert[row * p.top_k + lane] = chosen[lane];
  __syncthreads();
  if (p.rows > 1) {
    if (threadIdx.x == 0) {
      int before;
      asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(p.ready) : "memory");
      last_one = before == p.rows - 1;
      if (last_one) *p.ready = 0;
    }
    __syncthreads();
    if (!last_one) return;
    for (int i = threadIdx.x; i < p.rows * p.top_k; i += kThreads) chosen[i] = __ldcg(p.out.expert + i);
    __syncthreads();
  }
  list(p, chosen, carry);
}

}  // namespace

void moe_route(const RouteParams& p, Stream& stream) {
  if (p.rows < 1 || p.rows > kMoeRows || p.experts < 1 || p.experts > kMoeExperts || p.top_k < 1 ||
      p.top_k > kMoeChosen || p.top_k > p.experts || p.k % 256 != 0 || p.k > kMostLoads * 256) {
    std::fprintf(
        stderr,
        "moe_route: %d rows of %d, %d of %d experts: expected at most %d rows of a multiple of 256 up to "
        "%d, %d of %d experts\n",
        p.rows,
        p.k,
        p.top_k,
        p.experts,
        kMoeRows,
        kMostLoads * 256,
        kMoeChosen,
        kMoeExperts);
    std::abort();
  }
  void (*const kernel)(RouteParams) = p.k <= 2048
                                          ? (p.experts <= 128 ? route_kernel<8, 1> : route_kernel<8, 2>)
                                          : (p.experts <= 128 ? route_kernel<16, 1> : route_kernel<16, 2>);
  launch_clusters(kernel, dim3(kBlocks, unsigned(p.rows)), kBlocks, kThreads, 0, stream.get(), p);
}

}  // namespace se::cuda
