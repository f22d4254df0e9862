// One block a row. Order-preserving keys are counted in up to 2,048 equal bins between the least and the
// greatest (bins over the range in use keep the counters from being fought for), then within the bin that
// holds the k-th best, until that bin is taken whole, holds one key only, or few enough to be ranked one by
// one. Then one stable compaction. A warp owns 256 neighbours of a chunk, so that ballots keep the index
// order. One processor does all of a row: instructions per element are what this kernel costs.
#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/stream.h"
#include "kernels/topk/topk_cuda.h"

namespace se::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32, kOwn = 8, kChunk = kThreads * kOwn;
constexpr int kBins = 2048, kBinsOwn = kBins / kThreads, kFew = 32;

// Greater scores get greater keys; NaN gets 0, which no number has.
__device__ __forceinline__ uint32_t key_of(float x) {
  if (x != x) return 0;
  const uint32_t u = __float_as_uint(x == 0 ? 0.f : x);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

__device__ __forceinline__ int first_of(int chunk) {  // this thread's first element; the others every 32
  return chunk * kChunk + threadIdx.x / 32 * 32 * kOwn + threadIdx.x % 32;
}
__device__ __forceinline__ void load_keys(const float* score, int first, int n, uint32_t (&key)[kOwn]) {
  float x[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) x[i] = first + 32 * i < n ? score[first + 32 * i] : 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) key[i] = key_of(x[i]);
}

// Sum over the warps before this one and over all; `mine` is the same for a whole warp. Another `carry` each
// time.
__device__ __forceinline__ int warps_before(int mine, int* carry, int& all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) carry[warp] = mine;
  __syncthreads();
  const int x = carry[lane];
  all = __reduce_add_sync(~0u, x);
  return __reduce_add_sync(~0u, lane < warp ? x : 0);
}

struct Candidates {
  static constexpr int kMost = 256, kShare = kThreads / kMost;  // threads that rank one
  uint32_t key[kMost];
  int index[kMost];
};

// Ranks the first n candidates (ascending indices) and writes the k best of them in that order, and what
// `runs` has for them, if anything, to out_runs. All threads.
__device__ __forceinline__ void rank_candidates(
    const Candidates& x, int n, int k, int32_t* index, const int64_t* runs, int64_t* out_runs, int* carry) {
  const int mine = threadIdx.x / Candidates::kShare, part = threadIdx.x % Candidates::kShare,
            lane = threadIdx.x % 32;
  const uint32_t key = x.key[mine];
  const bool writes = part == 0 && mine < n;
  const int its = writes ? x.index[mine] : 0;
  const int64_t run = writes && runs ? runs[its] : 0;  // on its way while they are ranked
  int rank = 0;                                        // better ones
  if (mine / 8 * 8 < n) {                              // some of the warp's
#pragma unroll 2
    for (int i = part * 4; i < n; i += 4 * Candidates::kShare) {
      const uint4 other = *reinterpret_cast<const uint4*>(x.key + i);  // zeros beyond n
      rank += (other.x > key || (other.x == key && i < mine)) +
              (other.y > key || (other.y == key && i + 1 < mine)) +
              (other.z > key || (other.z == key && i + 2 < mine)) +
              (other.w > key || (other.w == key && i + 3 < mine));
    }
    for (int d = 1; d < Candidates::kShare; d *= 2) rank += __shfl_xor_sync(~0u, rank, d);
  }
  const bool chosen = writes && rank < k;
  const uint32_t all_chosen = __ballot_sync(~0u, chosen);
  int all;
  const int before = warps_before(__popc(all_chosen), carry, all);
  if (!chosen) return;
  const int at = before + __popc(all_chosen & ((1u << lane) - 1));
  index[at] = its;
  if (runs) out_runs[at] = run;
}

// kOne: rows of one chunk, whose keys stay in registers.
template <bool kOne>
__global__ __launch_bounds__(kThreads, 1) void top_k_kernel(const __grid_constant__ TopKParams p) {
  __shared__ int bins[kBins], carry[2][kWarps], bin_is, bin_before, bin_holds, few;
  __shared__ uint32_t least[kWarps], most[kWarps], few_keys[kFew];
  __shared__ __align__(16) Candidates candidates;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < kBinsOwn; ++i) bins[i * kThreads + threadIdx.x] = 0;
  if (threadIdx.x == 0) few = 0;
  pdl_wait();
  pdl_release();
  const int row = blockIdx.x;
  const float* score = p.score + row * p.score_row;
  int32_t* index = p.index + row * p.index_row;
  uint32_t key[kOwn], low = ~0u, high = 0;  // the k-th best key lies in [low, high]
  // The first chunk is read together with the row's length, as far as the row reaches in memory.
  load_keys(score, first_of(0), int(min(p.score_row, int64_t(kChunk))), key);
  const int n = p.n[row], k = min(p.k, n), chunks = kOne ? 1 : (n + kChunk - 1) / kChunk;
  const int64_t start = p.runs ? p.start[row] : 0;
  if (k <= 0) return;
  const auto gather = [&] {  // after a barrier behind the writes of `index`
#pragma unroll 1
    for (int i = threadIdx.x; p.runs && i < k; i += kThreads)
      p.out_runs[row * p.index_row + i] = p.runs[start + index[i]];
  };
  if (k == n) {
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += kThreads) index[i] = i;
    __syncthreads();
    return gather();
  }
  const auto each = [&](const auto& go) {  // go(place in key, element) for the thread's elements below n
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int first = first_of(chunk);
      if (!kOne) load_keys(score, first, n, key);
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        if (first + 32 * i < n) go(i);
    }
  };
  if (kOne && k <= Candidates::kMost / 2 && n >= kThreads) {
    uint32_t top = 0;
    each([&](int i) { top = max(top, key[i]); });
    const uint32_t worst = __reduce_min_sync(~0u, top), best = __reduce_max_sync(~0u, top);
    if (lane == 0) least[warp] = worst, most[warp] = best;
    if (threadIdx.x < Candidates::kMost) candidates.key[threadIdx.x] = 0;
    __syncthreads();
    low = __reduce_min_sync(~0u, least[lane]), high = __reduce_max_sync(~0u, most[lane]);
    const int shift = max(0, 21 - __clz(high - low));
    atomicAdd(&bins[(high - top) >> shift], 1);
    __syncthreads();
    const int2 own = *reinterpret_cast<const int2*>(bins + 2 * threadIdx.x);
    *reinterpret_cast<int2*>(bins + 2 * threadIdx.x) = int2{0, 0};
    int sum = own.x + own.y;
    const int mine = sum;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    int all;
    const int before = warps_before(__shfl_sync(~0u, sum, 31), carry[0], all) + sum - mine;
    if (before < k && k <= before + mine) bin_is = 2 * threadIdx.x + (before + own.x < k);
    __syncthreads();
    const uint32_t end = uint32_t(bin_is + 1) << shift;  // keys above high - end
    const uint32_t floor = end > high ? 0 : high - end + 1;
    uint32_t reach = 0;
    each([&](int i) { reach |= uint32_t(key[i] >= floor) << i; });
    const int count = __reduce_add_sync(~0u, __popc(reach));
    int at = warps_before(count, carry[1], all);
    if (all <= Candidates::kMost) {  // the same for the whole block
      uint32_t rounds = __reduce_or_sync(~0u, reach);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        if ((rounds >> i & 1) == 0) continue;
        const uint32_t here = __ballot_sync(~0u, reach >> i & 1);
        const int place = at + __popc(here & ((1u << lane) - 1));
        if (reach >> i & 1) candidates.key[place] = key[i], candidates.index[place] = first_of(0) + 32 * i;
        at += __popc(here);
      }
      __syncthreads();
      rank_candidates(candidates,
                      all,
                      k,
                      index,
                      p.runs ? p.runs + start : nullptr,
                      p.out_runs + row * p.index_row,
                      carry[0]);
      return;
    }
    low = ~0u, high = 0;
    __syncthreads();
  }
  int want = k;  // still to be taken from [low, high]
  each([&](int i) { low = min(low, key[i]), high = max(high, key[i]); });
  low = __reduce_min_sync(~0u, low), high = __reduce_max_sync(~0u, high);
  if (lane == 0) least[warp] = low, most[warp] = high;
  __syncthreads();
  low = __reduce_min_sync(~0u, least[lane]), high = __reduce_max_sync(~0u, most[lane]);
  for (int pass = 0; low < high; ++pass) {
    const int shift = max(0, 21 - __clz(high - low));
    each([&](int i) {  // from the best down; keys above `high` wrap around to beyond the bins, as do those
                       // below
      const uint32_t bin = (high - key[i]) >> shift;
      if (key[i] >= low && bin < uint32_t(kBins)) atomicAdd(&bins[bin], 1);
    });
    __syncthreads();
    const int2 own = *reinterpret_cast<const int2*>(bins + 2 * threadIdx.x);
    *reinterpret_cast<int2*>(bins + 2 * threadIdx.x) = int2{0, 0};  // for the next pass
    int sum = own.x + own.y;
    const int mine = sum;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    int all;
    int before = warps_before(__shfl_sync(~0u, sum, 31), carry[pass % 2], all) + sum - mine;
    if (before < want && want <= before + mine) {
      const bool second = before + own.x < want;
      bin_is = 2 * threadIdx.x + second, bin_before = before + (second ? own.x : 0),
      bin_holds = second ? own.y : own.x;
    }
    __syncthreads();
    want -= bin_before;
    const uint32_t top = high - (uint32_t(bin_is) << shift);
    low = max(low, top - min(top, (1u << shift) - 1)), high = top;
    const int held = bin_holds;
    if (held == want) break;
    if (!kOne || held > kFew || low == high) continue;
    each([&](int i) {
      if (key[i] >= low && key[i] <= high) few_keys[atomicAdd(&few, 1)] = key[i];
    });
    __syncthreads();
    const uint32_t its = lane < held ? few_keys[lane] : 0;  // every warp ranks them
    int above = 0, same = 0;
#pragma unroll 1
    for (int i = 0; i < held; ++i) {
      const uint32_t other = __shfl_sync(~0u, its, i);
      above += other > its, same += other == its;
    }
    const int found = __ffs(__ballot_sync(~0u, lane < held && above < want && want <= above + same)) - 1;
    low = high = __shfl_sync(~0u, its, found);
    want -= __shfl_sync(~0u, above, found);
  }
  // All above `high` go, and the first `want` of [low, high].
  int above_before = 0, within_before = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int first = first_of(chunk);
    if (!kOne) load_keys(score, first, n, key);
    uint32_t over = 0, within = 0;  // bit i: element first + 32 i
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (first + 32 * i < n && key[i] >= low) (key[i] > high ? over : within) |= 1u << i;
    // A chunk has 8,192 elements at most: both counts fit in one number.
    const int count = __reduce_add_sync(~0u, __popc(over) << 16 | __popc(within));
    if (chunk == 0) __syncthreads();
    int all;
    const int packed = warps_before(count, carry[chunk % 2], all);
    int a = above_before + (packed >> 16), e = within_before + (packed & 0xffff);
    above_before += all >> 16, within_before += all & 0xffff;
    uint32_t rounds = __reduce_or_sync(~0u, over | within);
    const uint32_t below = (1u << lane) - 1;
#pragma unroll 1
    for (; rounds; rounds &= rounds - 1) {
      const int i = __ffs(rounds) - 1;
      const uint32_t overs = __ballot_sync(~0u, over >> i & 1), withins = __ballot_sync(~0u, within >> i & 1);
      const int before_a = a + __popc(overs & below), before_e = e + __popc(withins & below);
      if ((over >> i & 1) || ((within >> i & 1) && before_e < want))
        index[before_a + min(before_e, want)] = first + 32 * i;
      a += __popc(overs), e += __popc(withins);
    }
  }
  __syncthreads();
  gather();
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
  launch(p.score_row <= kChunk ? top_k_kernel<true> : top_k_kernel<false>,
         dim3(unsigned(p.rows)),
         kThreads,
         0,
         stream.get(),
         p);
}

}  // namespace se::cuda
