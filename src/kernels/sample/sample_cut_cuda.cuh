// kernels/sample/sample_cut_cuda.cuh -- what the blocks of a row share, and how they find the element at
// which a running count, best first, reaches what is wanted. Device code only.
//
// An element's order is a 64-bit number: the order-preserving bits of its logit, then the complement of its
// id. Counts are integers: exact in any order.
#pragma once
#include <cstdint>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"

namespace se::cuda::sampling {

inline constexpr int kThreads = 512, kWarps = kThreads / 32, kMostCluster = 16;
inline constexpr int kBlock = 256,
                     kStride = kBlock + 8;  // a block of the draw; apart in shared memory, for its banks
inline constexpr int kBins = 512, kFew = 256, kCopies = 4;
inline constexpr int64_t kMostShared = 232448, kStaticShared = 20 << 10;

__device__ __forceinline__ uint32_t key_of(float x) {  // NaN: 0, which no number has
  if (x != x) return 0;
  const uint32_t u = __float_as_uint(x == 0 ? 0.f : x);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
__device__ __forceinline__ uint64_t order_of(float x, int id) {
  return uint64_t(key_of(x)) << 32 | uint32_t(~uint32_t(id));
}

// `p` in another block of the cluster.
template <typename T>
__device__ __forceinline__ T* in_block(T* p, int rank) {
  uint64_t at;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"(p), "r"(rank));
  return reinterpret_cast<T*>(at);
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return int(rank);
}

struct Shared {
  // By turns, so that one use may begin while others still read the last one's.
  uint32_t bins[2][2][kBins];  // mantissas: the low 12 bits, the others
  int count[2];                // of `list`, in block 0
  uint32_t exponents[kCopies][2][128];
  uint64_t exponent_sum[128];
  double sum_of_exponent[128];
  uint64_t best[kMostCluster], least[2][kMostCluster], most[2][kMostCluster];
  uint32_t floor[kMostCluster], likely;
  alignas(16) uint32_t warp_best[kMostCluster * kWarps];  // keys
  uint64_t list[kFew];  // block 0: the elements that may be the cut, and what they count
  uint32_t list_counts[kFew];
  uint64_t warp[2][kWarps];
  double warp_sum[kWarps];
  uint64_t cut, before;
  int own, bin, exponent, first;  // own: of this block's in `list`
};
static_assert(sizeof(Shared) <= kStaticShared);

__device__ __forceinline__ uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }
__device__ __forceinline__ uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }

// The least and the greatest of a block's, in thread 0.
__device__ __forceinline__ void block_range(Shared& s, uint64_t& least, uint64_t& most) {
  for (int d = 16; d > 0; d /= 2) {
    least = min64(least, __shfl_xor_sync(~0u, least, d));
    most = max64(most, __shfl_xor_sync(~0u, most, d));
  }
  if (threadIdx.x % 32 == 0) s.warp[0][threadIdx.x / 32] = least, s.warp[1][threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const int w = threadIdx.x % kWarps;
  least = s.warp[0][w], most = s.warp[1][w];
  for (int d = kWarps / 2; d > 0; d /= 2) {
    least = min64(least, __shfl_xor_sync(~0u, least, d));
    most = max64(most, __shfl_xor_sync(~0u, most, d));
  }
}

// The sum over the threads before this one, and over all.
template <typename T>
__device__ __forceinline__ T threads_before(T mine, T* warps, T& all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T sum = mine;
  for (int d = 1; d < 32; d *= 2) {
    const T other = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += other;
  }
  __syncthreads();  // the last use of `warps` is over
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  T before = 0;
  all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += warps[w];
    all += warps[w];
  }
  const T up = __shfl_up_sync(~0u, sum, 1);
  return lane == 0 ? before : before + up;
}

struct Stretch {  // what this block holds
  float* x;       // [blocks * kStride]
  int rank, first, count;
  __device__ __forceinline__ float& at(int e) const { return x[e + e / kBlock * (kStride - kBlock)]; }

  // go(element, what is held of it) for the first n elements, some loads ahead of their use.
  template <typename Go>
  __device__ __forceinline__ void each(int n, const Go& go) const {
    constexpr int kAhead = 8;
    for (int base = threadIdx.x; base < n; base += kAhead * kThreads) {
      float held[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) held[i] = base + i * kThreads < n ? at(base + i * kThreads) : 0;
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (base + i * kThreads < n) go(base + i * kThreads, held[i]);
    }
  }
  // Reads the logits, NaN up to `padded`. All under way at once. Ends with a barrier.
  __device__ __forceinline__ void read(const float* logits, int padded) const {
    const uint32_t to = uint32_t(__cvta_generic_to_shared(x));
    const auto place = [&](int e) { return to + (e + e / kBlock * (kStride - kBlock)) * 4; };
    int done = 0;
    if ((reinterpret_cast<uint64_t>(logits) & 15) == 0) {
      done = count / 4 * 4;
#pragma unroll 4
      for (int e = threadIdx.x * 4; e < done; e += kThreads * 4) copy16(place(e), logits + e, true);
    }
    for (int e = done + threadIdx.x; e < padded; e += kThreads) {
      if (e < count)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place(e)), "l"(logits + e) : "memory");
      else
        at(e) = __int_as_float(0x7fffffff);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
  }
};

// The order of the first element, best first, with which the counts reach `need`; 0 if all do not. get(e,
// held, x, counts): whether element e of this block takes part, its logit, and what it counts (below 2^24).
// `likely`: an order that the cut is not below; if no more than kFew are, they are ranked at once (none: ~0).
// Else the first histogram has bins of 1 / per_bin logits from `high` down and leaves out what lies below
// them, the others are over orders. `turn` counts the rounds of the launch; s.count of a round is zero when
// it begins.
template <int kCluster, bool kCounts, typename Get>
__device__ uint64_t find_cut(Shared& s,
                             const Stretch& v,
                             const Get& get,
                             uint64_t need,
                             uint64_t likely,
                             float high,
                             float per_bin,
                             int& turn) {
  // Lists those that in(x, order) takes in block 0, and their range; how many there are after a barrier.
  const auto list = [&](const auto& in, uint64_t& least, uint64_t& most) {
    int* count = in_block(&s.count[turn & 1], 0);
    v.each(v.count, [&](int e, float held) {
      float x;
      uint32_t counts;
      if (!get(e, held, x, counts)) return;
      const uint64_t order = order_of(x, v.first + e);
      if (!in(x, order)) return;
      least = min64(least, order), most = max64(most, order);
      if (atomicAdd(&s.own, 1) > kFew) return;  // too many anyway
      const int place = atomicAdd(count, 1);
      if (place < kFew) *in_block(&s.list[place], 0) = order, *in_block(&s.list_counts[place], 0) = counts;
    });
  };
  const auto listed = [&] { return *in_block(&s.count[turn & 1], 0); };
  const auto rank_listed = [&](int n) {              // leaves the cut in s.cut
    if (v.rank == 0 && threadIdx.x / 32 * 16 < n) {  // two threads a candidate
      const int own = threadIdx.x / 2;
      const uint64_t order = own < n ? s.list[own] : 0;
      uint64_t better = 0;
#pragma unroll 4
      for (int i = threadIdx.x % 2; i < n; i += 2)
        if (s.list[i] > order) better += s.list_counts[i];
      better += __shfl_xor_sync(~0u, better, 1);
      if (own < n && better < need && need <= better + s.list_counts[own])
        for (int r = threadIdx.x % 2; r < kCluster; r += 2) *in_block(&s.cut, r) = order;
    }
    cluster_sync();
    ++turn;
    return s.cut;
  };
  uint64_t least = ~uint64_t(0), most = 0;
  if (threadIdx.x == 0) s.own = 0, s.cut = 0;
  __syncthreads();
  if (likely < ~uint64_t(0)) {
    list([&](float, uint64_t order) { return order >= likely; }, least, most);
    cluster_sync();
    const int n = listed();
    if (threadIdx.x == 0) s.count[~turn & 1] = 0;
    if (n <= kFew) return rank_listed(n);
    ++turn;
  }
  uint64_t low = 0, top = ~uint64_t(0);
  int shift = 0;
  for (bool values = true;; values = false, ++turn) {
    uint32_t(&bins)[2][kBins] = s.bins[turn & 1];
    for (int i = threadIdx.x; i < 2 * kBins; i += kThreads) bins[i / kBins][i % kBins] = 0;
    if (threadIdx.x == 0) s.own = 0, s.bin = -1;
    __syncthreads();
    if (!values) shift = max(0, 55 - __clzll(top - low));  // bins of at most 2^9
    const auto bin_of = [&](float x, uint64_t order) {     // kBins: none
      if (values) return int(fminf(fmaxf((high - x) * per_bin, 0.f), float(kBins)));
      return order < low || order > top ? kBins : int((top - order) >> shift);
    };
    v.each(v.count, [&](int e, float held) {
      float x;
      uint32_t counts;
      if (!get(e, held, x, counts)) return;
      const int bin = bin_of(x, order_of(x, v.first + e));
      if (bin == kBins) return;
      atomicAdd(&bins[0][bin], counts & 0xfff);
      if (kCounts) atomicAdd(&bins[1][bin], counts >> 12);
    });
    cluster_sync();
    if (threadIdx.x == 0) s.count[~turn & 1] = 0;
    uint64_t mine = 0, all;
#pragma unroll
    for (int r = 0; r < kCluster; ++r) {
      mine += *in_block(&bins[0][threadIdx.x], r);
      if (kCounts) mine += uint64_t(*in_block(&bins[1][threadIdx.x], r)) << 12;
    }
    const uint64_t before = threads_before(mine, s.warp[0], all);
    if (before < need && need <= before + mine) s.bin = threadIdx.x, s.before = before;
    __syncthreads();
    const int bin = s.bin;
    if (bin < 0 && values) {  // further down than the first histogram looks
      __syncthreads();
      continue;
    }
    if (bin < 0) return ++turn, 0;
    need -= s.before;
    if (!values) {
      const uint64_t end = top - (uint64_t(bin) << shift), span = (uint64_t(1) << shift) - 1;
      low = max64(low, end > span ? end - span : 0), top = end;
    }
    least = ~uint64_t(0), most = 0;
    list([&](float x,
             uint64_t order) { return values ? bin_of(x, order) == bin : order >= low && order <= top; },
         least,
         most);
    if (values) {
      block_range(s, least, most);
      if (threadIdx.x < kCluster) {
        *in_block(&s.least[turn & 1][v.rank], threadIdx.x) = least;
        *in_block(&s.most[turn & 1][v.rank], threadIdx.x) = most;
      }
    }
    cluster_sync();
    const int n = listed();
    if (n <= kFew) return rank_listed(n);
    if (values) {
      low = ~uint64_t(0), top = 0;
      for (int r = 0; r < kCluster; ++r)
        low = min64(low, s.least[turn & 1][r]), top = max64(top, s.most[turn & 1][r]);
    }
  }
}

}  // namespace se::cuda::sampling
