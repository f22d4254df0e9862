// One block a row. Order-preserving keys are counted in up to 2,048 equal bins between the least and the
// greatest, then within the bin that holds the k-th best, until that bin is taken whole or holds one key
// only; bins over the range in use keep the counters from being fought for. Then one stable compaction: each
// thread owns 8 neighbours of a chunk, so block prefix sums keep the index order.
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

// Inclusive prefix sum over the block's threads; `all` gets the total. `carry` int [32], another one each
// time.
__device__ __forceinline__ int scan(int mine, int* carry, int& all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = mine;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += other;
  }
  if (lane == 31) carry[warp] = sum;
  __syncthreads();
  int w = carry[lane];
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, w, d);
    if (lane >= d) w += other;
  }
  all = __shfl_sync(~0u, w, 31);
  const int before = __shfl_sync(~0u, w, warp == 0 ? 0 : warp - 1);
  return sum + (warp == 0 ? 0 : before);
}

__global__ __launch_bounds__(kThreads) void top_k_kernel(const __grid_constant__ TopKParams p) {
  __shared__ int bins[kBins], carry[2][32], bin_is, bin_before, bin_holds;
  __shared__ uint32_t least[32], most[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  bins[threadIdx.x] = bins[threadIdx.x + kThreads] = 0;
  pdl_wait();
  pdl_release();
  const int row = blockIdx.x, n = p.n[row], k = min(p.k, n);
  const float* score = p.score + row * p.score_row;
  const int64_t* runs = p.runs ? p.runs + p.start[row] : nullptr;
  const auto put = [&](int place, int i) {
    p.index[row * p.index_row + place] = i;
    if (runs) p.out_runs[row * p.index_row + place] = runs[i];
  };
  if (k <= 0) return;
  if (k == n) {
    for (int i = threadIdx.x; i < n; i += kThreads) put(i, i);
    return;
  }
  const int chunks = (n + kChunk - 1) / kChunk;
  uint32_t key[kOwn], low = ~0u, high = 0;  // the k-th best key lies in [low, high]
  int there = load_keys(score, threadIdx.x * kOwn, n, key), want = k;  // want: still to be taken from there
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (chunks > 1) there = load_keys(score, chunk * kChunk + threadIdx.x * kOwn, n, key);
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (i < there) low = min(low, key[i]), high = max(high, key[i]);
  }
  low = __reduce_min_sync(~0u, low), high = __reduce_max_sync(~0u, high);
  if (lane == 0) least[warp] = low, most[warp] = high;
  __syncthreads();
  low = __reduce_min_sync(~0u, least[lane]), high = __reduce_max_sync(~0u, most[lane]);
  for (int pass = 0; low < high; ++pass) {
    const int shift = max(0, 21 - __clz(high - low)), top = int((high - low) >> shift);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (chunks > 1) there = load_keys(score, chunk * kChunk + threadIdx.x * kOwn, n, key);
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        if (i < there && key[i] >= low && key[i] <= high)
          atomicAdd(&bins[top - int((key[i] - low) >> shift)], 1);  // from the best down
    }
    __syncthreads();
    const int b0 = bins[2 * threadIdx.x], b1 = bins[2 * threadIdx.x + 1];
    bins[2 * threadIdx.x] = bins[2 * threadIdx.x + 1] = 0;  // for the next pass
    int all = 0;
    const int after = scan(b0 + b1, carry[pass % 2], all), before = after - b0 - b1;
    if (before < want && want <= after) {
      const bool second = want > before + b0;
      bin_is = 2 * threadIdx.x + second, bin_before = before + (second ? b0 : 0),
      bin_holds = second ? b1 : b0;
    }
    __syncthreads();
    want -= bin_before;
    low += uint32_t(top - bin_is) << shift, high = min(high, low + ((1u << shift) - 1));
    if (bin_holds == want) break;
  }
  // All above `high` go, and the first `want` of [low, high].
  int above_before = 0, within_before = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int first = chunk * kChunk + threadIdx.x * kOwn;
    if (chunks > 1) there = load_keys(score, first, n, key);
    int above = 0, within = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (i < there) above += key[i] > high, within += key[i] >= low && key[i] <= high;
    int all = 0;  // a chunk has 8,192 elements at most: both counts fit in one number
    if (chunk == 0) __syncthreads();
    const int packed = scan(above << 16 | within, carry[chunk % 2], all) - (above << 16 | within);
    int a = above_before + (packed >> 16), e = within_before + (packed & 0xffff);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (i >= there) continue;
      if (key[i] > high) {
        put(a + min(e, want), first + i), ++a;
      } else if (key[i] >= low) {
        if (e < want) put(a + e, first + i);
        ++e;
      }
    }
    above_before += all >> 16, within_before += all & 0xffff;
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
