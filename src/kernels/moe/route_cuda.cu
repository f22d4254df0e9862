// One warp an expert computes its logits for all rows; the last block to finish chooses. Gate weights are on
// their way before the kernel waits for its predecessor.
#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/rows.cuh"
#include "device/cuda/stream.h"
#include "kernels/moe/moe_cuda.h"

namespace se::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kMostLoads = 16;

// The pairs of a row, in the order of choice: lanes hold logits lane + 32 i.
__device__ void choose(const RouteParams& p, int row, int32_t* chosen) {
  constexpr int kOwn = kMoeExperts / 32;
  const int lane = threadIdx.x % 32;
  float own[kOwn], all = 0, top = -INFINITY;
  const float* logits = p.logits + row * p.experts;
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
    own[i] = lane + 32 * i < p.experts ? __ldcg(logits + lane + 32 * i) : -INFINITY;
  float best[kMoeChosen];
  int which[kMoeChosen];
#pragma unroll
  for (int j = 0; j < kMoeChosen; ++j) {
    if (j >= p.top_k) break;
    float most = -INFINITY;
    int at = 1 << 30;
#pragma unroll
    for (int i = kOwn - 1; i >= 0; --i)
      if (own[i] >= most && lane + 32 * i < p.experts) most = own[i], at = lane + 32 * i;
    for (int d = 16; d > 0; d /= 2) {
      const float other = __shfl_xor_sync(~0u, most, d);
      const int there = __shfl_xor_sync(~0u, at, d);
      if (other > most || (other == most && there < at)) most = other, at = there;
    }
    if (at >= p.experts) at = j;  // nothing but NaN is left
    best[j] = most, which[j] = at;
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (lane + 32 * i == at) own[i] = __int_as_float(0x7fc00000);  // never compares again
  }
  top = best[0];
#pragma unroll
  for (int j = 0; j < kMoeChosen; ++j)
    if (j < p.top_k) all += expf(best[j] - top);
  if (!p.over_chosen) {
    float rest = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (own[i] == own[i] && lane + 32 * i < p.experts) rest += expf(own[i] - top);
    for (int d = 16; d > 0; d /= 2) rest += __shfl_xor_sync(~0u, rest, d);
    all += rest;
  }
#pragma unroll
  for (int j = 0; j < kMoeChosen; ++j)
    if (j < p.top_k && lane == 0) {
      p.out.weight[row * p.top_k + j] = expf(best[j] - top) / all;
      p.out.expert[row * p.top_k + j] = which[j];
      chosen[row * p.top_k + j] = which[j];
    }
}

// Experts in ascending order with their pairs; thread e looks after expert e.
__device__ void list(const RouteParams& p, const int32_t* chosen, int* carry) {
  const int pairs = p.rows * p.top_k, e = threadIdx.x, lane = e % 32, warp = e / 32;
  int count = 0;
  for (int i = 0; i < pairs; ++i) count += chosen[i] == e;
  int sum = count << 16 | (count > 0);  // pairs and active experts, side by side
  const int own = sum;
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
  if (e == 0) p.out.active[0] = all & 0xffff, p.out.first[all & 0xffff] = pairs;
  if (count == 0) return;
  int at = before >> 16;
  p.out.active[1 + (before & 0xffff)] = e, p.out.first[before & 0xffff] = at;
  for (int i = 0; i < pairs; ++i)
    if (chosen[i] == e) p.out.pairs[at++] = i;
}

template <int kRows>
__global__ __launch_bounds__(kThreads) void route_kernel(const __grid_constant__ RouteParams p) {
  extern __shared__ __align__(16) float rows[];  // [kRows][k]
  __shared__ float sums[kWarps * kRows];
  __shared__ int32_t chosen[kMoeRows * kMoeChosen];
  __shared__ int carry[kWarps];
  __shared__ bool last_one;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int expert = blockIdx.x * kWarps + warp, loads = p.k / 256;
  const char* gate = static_cast<const char*>(p.gate) + int64_t(min(expert, p.experts - 1)) * p.k * 2;
  uint4 w[kMostLoads];
#pragma unroll
  for (int i = 0; i < kMostLoads; ++i)
    if (i < loads) w[i] = stream16(gate + (i * 32 + lane) * 16);
  pdl_wait();
  pdl_release();
  for (int first = 0; first < p.rows; first += kRows) {
    take_rows<kRows>(p.x, p.k, first, p.rows, p.norm, p.eps, sums, [&](int r, int at, const float4& v) {
      *reinterpret_cast<float4*>(rows + r * p.k + at) = v;
      if (first + r < p.rows && blockIdx.x == unsigned(first + r) % gridDim.x)
        *reinterpret_cast<uint2*>(p.h + int64_t(first + r) * p.k + at) = {pack(v.x, v.y, __half()),
                                                                          pack(v.z, v.w, __half())};
    });
    __syncthreads();
    float dot[kRows] = {};
#pragma unroll
    for (int i = 0; i < kMostLoads; ++i) {
      if (i >= loads) break;
      const uint32_t word[4] = {w[i].x, w[i].y, w[i].z, w[i].w};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float* from = rows + r * p.k + (i * 32 + lane) * 8;
        const float4 a = *reinterpret_cast<const float4*>(from);
        const float4 b = *reinterpret_cast<const float4*>(from + 4);
        const float2 w0 = unpack(word[0], __nv_bfloat16()), w1 = unpack(word[1], __nv_bfloat16());
        const float2 w2 = unpack(word[2], __nv_bfloat16()), w3 = unpack(word[3], __nv_bfloat16());
        dot[r] += (a.x * w0.x + a.y * w0.y + a.z * w1.x + a.w * w1.y) +
                  (b.x * w2.x + b.y * w2.y + b.z * w3.x + b.w * w3.y);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      for (int d = 16; d > 0; d /= 2) dot[r] += __shfl_xor_sync(~0u, dot[r], d);
      if (lane == 0 && expert < p.experts && first + r < p.rows)
        __stcg(p.logits + (first + r) * p.experts + expert, dot[r]);
    }
    __syncthreads();
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last_one = atomicAdd(p.ready, 1) == int(gridDim.x) - 1;
    if (last_one) *p.ready = 0;
  }
  __syncthreads();
  if (!last_one) return;
  __threadfence();
  for (int row = warp; row < p.rows; row += kWarps) choose(p, row, chosen);
  __syncthreads();
  list(p, chosen, carry);
}

template <int kRows>
void start(const RouteParams& p, Stream& stream) {
  static const bool once = [] {
    SE_CUDA(cudaFuncSetAttribute(
        route_kernel<kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize, kRows * kMostLoads * 256 * 4));
    return true;
  }();
  (void)once;
  launch(route_kernel<kRows>,
         dim3(unsigned((p.experts + kWarps - 1) / kWarps)),
         kThreads,
         int64_t(kRows) * p.k * 4,
         stream.get(),
         p);
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
  p.rows == 1 ? start<1>(p, stream) : start<4>(p, stream);
}

}  // namespace se::cuda
