// A block computes kExperts logits of kRows rows. Gate weights and the norm's are on their way before the
// kernel waits for its predecessor. The factor 1 / rms comes out of the sum, so that squares and products are
// added up together: one barrier.
#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/moe/moe_cuda.h"

namespace se::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kMostLoads = 2;  // 8 channels a load

template <int kExperts, int kRows, int kLoads>
__global__ __launch_bounds__(kThreads) void route_kernel(const __grid_constant__ RouteParams p) {
  constexpr int kSums = kExperts + 1;  // the last: squares
  __shared__ float sums[kWarps][kRows][kSums];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = blockIdx.x * kExperts, first_row = blockIdx.y * kRows;
  uint4 w[kExperts][kLoads];
  float norm[kLoads][8];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int at = (i * kThreads + threadIdx.x) * 8;
    if (at >= p.k) continue;
#pragma unroll
    for (int e = 0; e < kExperts; ++e)
      w[e][i] = stream16(static_cast<const char*>(p.gate) +
                         (int64_t(min(first + e, p.experts - 1)) * p.k + at) * 2);
#pragma unroll
    for (int j = 0; j < 2; ++j)
      *reinterpret_cast<float4*>(norm[i] + 4 * j) = __ldg(reinterpret_cast<const float4*>(p.norm + at) + j);
  }
  pdl_wait();
  pdl_release();
  float x[kRows][kLoads][8];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = (i * kThreads + threadIdx.x) * 8;
      if (at >= p.k) continue;
      const float* from = p.x + int64_t(min(first_row + r, p.rows - 1)) * p.k + at;
#pragma unroll
      for (int j = 0; j < 2; ++j)
        *reinterpret_cast<float4*>(x[r][i] + 4 * j) = *reinterpret_cast<const float4*>(from + 4 * j);
    }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float sum[kSums] = {};  // every addition is spelt out: the same bits for any kExperts and kRows
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if ((i * kThreads + int(threadIdx.x)) * 8 >= p.k) continue;
      float v[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        v[j] = __fmul_rn(x[r][i][j], norm[i][j]);
        sum[kExperts] = __fmaf_rn(x[r][i][j], x[r][i][j], sum[kExperts]);
      }
#pragma unroll
      for (int e = 0; e < kExperts; ++e) {
        const uint32_t both[4] = {w[e][i].x, w[e][i].y, w[e][i].z, w[e][i].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 two = unpack(both[j], __nv_bfloat16());
          sum[e] = __fmaf_rn(v[2 * j + 1], two.y, __fmaf_rn(v[2 * j], two.x, sum[e]));
        }
      }
    }
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      for (int d = 16; d > 0; d /= 2) sum[s] += __shfl_xor_sync(~0u, sum[s], d);
      if (lane == 0) sums[warp][r][s] = sum[s];
    }
  }
  __syncthreads();
  const float share = __frcp_rn(float(p.k));
  const auto factor = [&](int r) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) squares += sums[i][r][kExperts];
    return rsqrtf(__fmaf_rn(squares, share, p.eps));
  };
  if (threadIdx.x < kExperts * kRows) {
    const int e = threadIdx.x % kExperts, r = threadIdx.x / kExperts;
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) dot += sums[i][r][e];
    if (first + e < p.experts && first_row + r < p.rows)
      p.logits[int64_t(first_row + r) * p.experts + first + e] = dot * factor(r);
  }
  // Each block of a row writes its share of h.
  const int own = (p.k / 8 + gridDim.x - 1) / gridDim.x;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int octet = i * kThreads + threadIdx.x;
    if (octet / own != int(blockIdx.x) || octet * 8 >= p.k) continue;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first_row + r >= p.rows) break;
      const float f = factor(r);
      uint32_t out[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        out[j] =
            pack(x[r][i][2 * j] * f * norm[i][2 * j], x[r][i][2 * j + 1] * f * norm[i][2 * j + 1], __half());
      *reinterpret_cast<uint4*>(p.h + int64_t(first_row + r) * p.k + octet * 8) = {
          out[0], out[1], out[2], out[3]};
    }
  }
}

template <int kExperts, int kRows>
void start(const RouteParams& p, Stream& stream) {
  const auto up = [](int a, int b) { return unsigned((a + b - 1) / b); };
  launch(p.k <= kThreads * 8 ? route_kernel<kExperts, kRows, 1> : route_kernel<kExperts, kRows, kMostLoads>,
         dim3(up(p.experts, kExperts), up(p.rows, kRows)),
         kThreads,
         0,
         stream.get(),
         p);
}

}  // namespace

void moe_route(const RouteParams& p, Stream& stream) {
  if (p.rows < 1 || p.rows > kMoeRows || p.experts < 1 || p.experts > kMoeExperts || p.k < 8 ||
      p.k % 8 != 0 || p.k > kMostLoads * kThreads * 8) {
    std::fprintf(
        stderr,
        "moe_route: %d rows of %d, %d experts: expected at most %d rows of a multiple of 8 up to %d, "
        "%d experts\n",
        p.rows,
        p.k,
        p.experts,
        kMoeRows,
        kMostLoads * kThreads * 8,
        kMoeExperts);
    std::abort();
  }
  p.rows <= 8 ? start<2, 1>(p, stream) : start<4, 4>(p, stream);
}

}  // namespace se::cuda
