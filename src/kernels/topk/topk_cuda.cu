// One block a row. Radix select over order-preserving keys, 11 + 11 + 10 bits from the top, then one stable
// compaction: each thread owns 8 neighbours of a chunk, so block prefix sums keep the index order.
#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/stream.h"
#include "kernels/topk/topk_cuda.h"

namespace se::cuda {
namespace {

constexpr int kThreads = 1024, kOwn = 8, kChunk = kThreads * kOwn, kBins = 2048;

// Greater scores get greater keys; NaN gets 0, which no number has.
__device__ __forceinline__ uint32_t key_of(float x) {
  if (x != x) return 0;
  const uint32_t u = __float_as_uint(x == 0 ? 0.f : x);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// The keys of elements first .. first + 7; `there` counts those below n.
__device__ __forceinline__ int load_keys(const float* score, int first, int n, uint32_t (&key)[kOwn]) {
  const int there = min(max(n - first, 0), kOwn);
  if (there == kOwn) {
    const float4 a = *reinterpret_cast<const float4*>(score + first);
    const float4 b = *reinterpret_cast<const float4*>(score + first + 4);
    key[0] = key_of(a.x), key[1] = key_of(a.y), key[2] = key_of(a.z), key[3] = key_of(a.w);
    key[4] = key_of(b.x), key[5] = key_of(b.y), key[6] = key_of(b.z), key[7] = key_of(b.w);
  } else {
    for (int i = 0; i < kOwn; ++i) key[i] = i < there ? key_of(score[first + i]) : 0;
  }
  return there;
}

// Exclusive prefix sum over the block's threads; `all` gets the total. `carry` int [33].
__device__ __forceinline__ int scan(int mine, int* carry, int& all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = mine;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += other;
  }
  if (lane == 31) carry[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    int w = carry[lane];
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, w, d);
      if (lane >= d) w += other;
    }
    carry[lane] = w;
  }
  __syncthreads();
  all = carry[31];
  const int before = warp == 0 ? 0 : carry[warp - 1];
  __syncthreads();
  return before + sum - mine;
}

__global__ __launch_bounds__(kThreads) void top_k_kernel(const __grid_constant__ TopKParams p) {
  __shared__ int bins[kBins];
  __shared__ int carry[33], chosen_bin, chosen_before;
  pdl_wait();
  pdl_release();
  const int row = blockIdx.x, n = p.n[row], k = min(p.k, n);
  const float* score = p.score + row * p.score_row;
  int32_t* index = p.index + row * p.index_row;
  if (k <= 0) return;
  if (k == n) {
    for (int i = threadIdx.x; i < n; i += kThreads) index[i] = i;
    return;
  }
  const int chunks = (n + kChunk - 1) / kChunk;
  uint32_t key[kOwn], prefix = 0, known = 0;  // bits of the k-th best key found so far, and which
  int there = load_keys(score, threadIdx.x * kOwn, n, key), want = k;  // want: still to be taken below prefix
  for (int pass = 0; pass < 3; ++pass) {
    const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, width = pass == 2 ? 10 : 11;
    const uint32_t low = (1u << width) - 1;
    for (int b = threadIdx.x; b < kBins; b += kThreads) bins[b] = 0;
    __syncthreads();
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (chunks > 1) there = load_keys(score, chunk * kChunk + threadIdx.x * kOwn, n, key);
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        if (i < there && (key[i] & known) == prefix) atomicAdd(&bins[low - (key[i] >> shift & low)], 1);
    }
    __syncthreads();
    const int b0 = bins[2 * threadIdx.x], b1 = bins[2 * threadIdx.x + 1];  // bins from the best down
    int all = 0;
    const int before = scan(b0 + b1, carry, all);
    if (before < want && want <= before + b0) chosen_bin = 2 * threadIdx.x, chosen_before = before;
    if (before + b0 < want && want <= before + b0 + b1)
      chosen_bin = 2 * threadIdx.x + 1, chosen_before = before + b0;
    __syncthreads();
    want -= chosen_before;
    prefix |= (low - uint32_t(chosen_bin)) << shift, known |= low << shift;
    __syncthreads();
  }
  // prefix is the k-th best key; all above it go, and the first `want` that equal it.
  int above_before = 0, equal_before = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int first = chunk * kChunk + threadIdx.x * kOwn;
    if (chunks > 1) there = load_keys(score, first, n, key);
    int above = 0, equal = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (i < there) above += key[i] > prefix, equal += key[i] == prefix;
    int all = 0;  // a chunk has 8,192 elements at most: both counts fit in one number
    const int packed = scan(above << 16 | equal, carry, all);
    int a = above_before + (packed >> 16), e = equal_before + (packed & 0xffff);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (i >= there) continue;
      if (key[i] > prefix) {
        index[a + min(e, want)] = first + i, ++a;
      } else if (key[i] == prefix) {
        if (e < want) index[a + e] = first + i;
        ++e;
      }
    }
    above_before += all >> 16, equal_before += all & 0xffff;
  }
}

}  // namespace

void top_k(const TopKParams& p, Stream& stream) {
  if (p.rows < 1) return;
  if (p.score_row % 4 != 0) {
    std::fprintf(stderr,
                 "top_k: rows of %lld scores: expected a multiple of 4\n",
                 static_cast<long long>(p.score_row));
    std::abort();
  }
  launch(top_k_kernel, dim3(unsigned(p.rows)), kThreads, 0, stream.get(), p);
}

}  // namespace se::cuda
