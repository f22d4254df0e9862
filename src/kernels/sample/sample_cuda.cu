// A row is a cluster of 8 or 16 blocks, each with a stretch of the vocabulary in shared memory: read once,
// first as logits, then as weights. Cuts (the k-th best, the end of top_p) are found by histograms that all
// blocks share, narrowed to the bin that holds the cut until few enough are left to be ranked one by one.
// Counts and the mantissas of weights of one binary exponent add up as integers: exact in any order.
#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/stream.h"
#include "kernels/sample/sample_cuda.h"
#include "kernels/sample/sample_cut_cuda.cuh"

namespace se::cuda {
namespace {

using namespace sampling;

constexpr int kFewRows = 8;  // rows that clusters of 16 take at once

// exp_nonpositive of softmax_weights.h, step by step: no fused product may sneak in.
__device__ __forceinline__ float exp_nonpositive(float x) {
  const float safe = x > -87.0f ? x : -87.0f;
  const float shifted = __fadd_rn(__fmul_rn(safe, 1.44269504f), 12582912.0f);
  const float n = __fsub_rn(shifted, 12582912.0f);
  const float r = __fadd_rn(__fsub_rn(safe, __fmul_rn(n, 0.693359375f)), __fmul_rn(n, 2.12194440e-4f));
  float p = 1.f / 5040;
  p = __fadd_rn(__fmul_rn(p, r), 1.f / 720);
  p = __fadd_rn(__fmul_rn(p, r), 1.f / 120);
  p = __fadd_rn(__fmul_rn(p, r), 1.f / 24);
  p = __fadd_rn(__fmul_rn(p, r), 1.f / 6);
  p = __fadd_rn(__fmul_rn(p, r), 0.5f);
  p = __fadd_rn(__fmul_rn(p, r), 1.f);
  p = __fadd_rn(__fmul_rn(p, r), 1.f);
  const uint32_t power = (__float_as_uint(shifted) << 23) + 0x3f800000u;
  const float y = __fmul_rn(p, __uint_as_float(power));
  return x > -87.0f ? y : 0.0f;
}

// uniform of base/rng.h.
__device__ double uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  uint32_t c0 = uint32_t(counter), c1 = uint32_t(counter >> 32), c2 = uint32_t(stream),
           c3 = uint32_t(stream >> 32);
#pragma unroll 1
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * c0, b = uint64_t(0xCD9E8D57u) * c2;
    c0 = uint32_t(b >> 32) ^ c1 ^ k0, c1 = uint32_t(b), c2 = uint32_t(a >> 32) ^ c3 ^ k1, c3 = uint32_t(a);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return double((uint64_t(c0) << 32 | c1) >> 11) * 0x1p-53;
}

// a / b, correctly rounded; r: 1 / b. b between 2^-64 and 2^64, a 0 or at least 2^-60 in size.
__device__ __forceinline__ float quotient(float a, float b, float r) {
  float q = __fmul_rn(a, r);
  q = __fmaf_rn(__fmaf_rn(-b, q, a), r, q);
  return __fmaf_rn(__fmaf_rn(-b, q, a), r, q);  // -inf becomes NaN: no weight either way
}

// The exponent of the weights among which top_p is reached (s.exponent), and what of their mantissas' sum is
// still needed. Weights of one exponent add up exactly, so these are the doubles of keep_top_p.
template <int kCluster>
__device__ uint64_t reach_top_p(Shared& s, double top_p) {
  for (int i = threadIdx.x; i < 128; i += kThreads) {
    uint64_t sum = 0;
    for (int c = 0; c < kCopies; ++c) sum += s.exponents[c][0][i] + (uint64_t(s.exponents[c][1][i]) << 12);
    s.exponent_sum[i] = sum;
  }
  cluster_sync();
  for (int i = threadIdx.x; i < 128; i += kThreads) {
    uint64_t sum = 0;
    for (int r = 0; r < kCluster; ++r) sum += *in_block(&s.exponent_sum[i], r);
    s.sum_of_exponent[i] = double(sum) * __longlong_as_double(int64_t(i - 150 + 1023) << 52);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0, reached = 0;
#pragma unroll 16
    for (int i = 0; i < 128; ++i) total += s.sum_of_exponent[i];
    const double wanted = top_p * total;
    int cut = 127;
    while (cut > 1 && reached + s.sum_of_exponent[cut] < wanted) reached += s.sum_of_exponent[cut--];
    const double units = ceil((wanted - reached) * __longlong_as_double(int64_t(150 - cut + 1023) << 52));
    s.exponent = cut;
    s.before = units < 1 ? 1 : units > 1e18 ? uint64_t(1) << 62 : uint64_t(units);
  }
  __syncthreads();
  return s.before;
}

// The draw, by block 0: the block of the row in which the sums pass u times their total, then the element.
__device__ int draw(Shared& s, const Stretch& v, const double* sums, int blocks, int per_rank, double u) {
  const int each = (blocks + kThreads - 1) / kThreads, from = threadIdx.x * each,
            to = min(blocks, from + each);
  double mine = 0, all;
  for (int b = from; b < to; ++b) mine += sums[b];
  double before = threads_before(mine, s.warp_sum, all);
  const double wanted = u * all;
  uint64_t chosen = ~uint64_t(0), last = 0;
  double rest = 0;
  for (int b = from; b < to; ++b) {
    if (sums[b] > 0) {
      last = b;
      if (chosen == ~uint64_t(0) && before + sums[b] > wanted) chosen = b, rest = wanted - before;
    }
    before += sums[b];
  }
  const uint64_t own = chosen;
  block_range(s, chosen, last);
  if (threadIdx.x == 0) {
    s.first = int(chosen == ~uint64_t(0) ? last : chosen);
    if (chosen == ~uint64_t(0)) s.warp_sum[0] = INFINITY;  // rounding: the last with any weight
  }
  __syncthreads();
  const int block = s.first;
  if (own == uint64_t(block)) s.warp_sum[0] = rest;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  rest = s.warp_sum[0];
  constexpr int kOwn = kBlock / 32;
  const float* weights = in_block(v.x + block % per_rank * kStride, block / per_rank) + threadIdx.x * kOwn;
  float w[kOwn];
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) w[i] = weights[i], sum += double(w[i]);
  double up_to = sum;
  for (int d = 1; d < 32; d *= 2) {
    const double other = __shfl_up_sync(~0u, up_to, d);
    if (threadIdx.x >= d) up_to += other;
  }
  up_to -= sum;
  unsigned first = kBlock, latest = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    up_to += double(w[i]);
    if (w[i] <= 0) continue;
    latest = threadIdx.x * kOwn + i;
    if (first == kBlock && up_to > rest) first = latest;
  }
  first = __reduce_min_sync(~0u, first), latest = __reduce_max_sync(~0u, latest);
  return block * kBlock + int(first < kBlock ? first : latest);
}

template <int kCluster>
__global__ __launch_bounds__(kThreads, 2) void sample_kernel(const __grid_constant__ SampleLaunch p) {
  extern __shared__ __align__(16) float dynamic[];
  __shared__ Shared s;
  const int blocks = int((p.vocab + kBlock - 1) / kBlock), per_rank = (blocks + kCluster - 1) / kCluster;
  Stretch v;
  v.rank = cluster_rank();
  v.first = v.rank * per_rank * kBlock;
  v.count = max(0, min(int(p.vocab) - v.first, per_rank * kBlock));
  v.x = dynamic;
  double* sums = reinterpret_cast<double*>(dynamic + per_rank * kStride);  // [blocks], block 0's are used
  const int padded = (v.count + kBlock - 1) / kBlock * kBlock, row = blockIdx.y, lane = threadIdx.x % 32;
  cluster_arrive();
  for (int i = threadIdx.x; i < kCopies * 2 * 128; i += kThreads) (&s.exponents[0][0][0])[i] = 0;
  if (threadIdx.x == 0) s.count[0] = s.count[1] = 0;
  pdl_wait();
  pdl_release();
  const SampleRow ask = p.row[row];
  const float* logits = p.logits + row * p.logits_row + v.first;

  v.read(logits, padded);
  uint64_t best = 0;
  v.each(v.count, [&](int e, float x) { best = max64(best, order_of(x, v.first + e)); });
  // The best of all, and the least of the threads' best: where top-k will not have to look further down.
  uint64_t floor = int(threadIdx.x) < v.count ? best : ~uint64_t(0);
  block_range(s, floor, best);
  cluster_wait();
  if (threadIdx.x < kCluster) {
    *in_block(&s.best[v.rank], threadIdx.x) = best;
    *in_block(&s.floor[v.rank], threadIdx.x) = uint32_t(floor >> 32);
  }
  if (threadIdx.x < kCluster * kWarps) {  // block_range has left them there
    const int w = threadIdx.x % kWarps;
    *in_block(&s.warp_best[v.rank * kWarps + w], threadIdx.x / kWarps) = uint32_t(s.warp[1][w] >> 32);
  }
  cluster_sync();
  uint32_t lowest = ~0u;
  for (int r = 0; r < kCluster; ++r)
    best = r == 0 ? s.best[0] : max64(best, s.best[r]), lowest = min(lowest, s.floor[r]);
  const float most = logit_of(uint32_t(best >> 32));
  if (!(ask.temperature >= 1e-5f) || ask.top_k == 1 || !(fabsf(most) < INFINITY)) {
    if (v.rank == 0 && threadIdx.x == 0) p.token[row] = int32_t(~uint32_t(best));
    return;
  }

  int turn = 0;
  uint64_t k_cut = 0;
  if (ask.top_k > 0 && ask.top_k < p.vocab) {
    // At least k are as good as the k-th best of the warps' best, and hardly more.
    constexpr int kWarpsOfRow = kCluster * kWarps;
    const bool few = ask.top_k <= kWarpsOfRow / 2;
    if (few && threadIdx.x < kWarpsOfRow) {
      const uint32_t key = s.warp_best[threadIdx.x];
      int better = 0;
#pragma unroll 4
      for (int i = 0; i < kWarpsOfRow; i += 4) {
        const uint4 other = *reinterpret_cast<const uint4*>(s.warp_best + i);
        const int at = threadIdx.x - i;  // ties: by place
        better +=
            (other.x > key || (other.x == key && at > 0)) + (other.y > key || (other.y == key && at > 1)) +
            (other.z > key || (other.z == key && at > 2)) + (other.w > key || (other.w == key && at > 3));
      }
      if (better == ask.top_k - 1) s.likely = key;
    }
    __syncthreads();
    const float range = most - logit_of(lowest);
    k_cut = find_cut<kCluster, false>(
        s,
        v,
        [](int, float held, float& x, uint32_t& counts) {
          x = held, counts = 1;
          return x == x;
        },
        uint64_t(ask.top_k),
        few ? uint64_t(s.likely) << 32 : ~uint64_t(0),
        most,
        range > 0 && range < INFINITY ? float(kBins - 1) / range : 0.f,
        turn);
  }
  const bool some = ask.top_p < 1;
  uint32_t(&exponents)[2][128] = s.exponents[threadIdx.x / 32 % kCopies];
  const float inverse =
      ask.temperature > 0x1p-64f && ask.temperature < 0x1p64f ? __frcp_rn(ask.temperature) : 0;
  constexpr int kAtOnce = 4;
  for (int base = threadIdx.x; base - lane < padded; base += kAtOnce * kThreads) {  // padded: whole warps
    float w[kAtOnce];
    bool any = false, far = inverse == 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int e = base + i * kThreads;
      const float x = e < padded ? v.at(e) : __int_as_float(0x7fffffff);
      w[i] = __fsub_rn(x, most);
      far = far || (fabsf(w[i]) < 0x1p-60f && w[i] != 0);
      if (k_cut > 0 && order_of(x, v.first + e) < k_cut) w[i] = -INFINITY;
    }
    if (ask.temperature != 1) {
      if (__any_sync(~0u, far)) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) w[i] = __fdiv_rn(w[i], ask.temperature);
      } else {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) w[i] = quotient(w[i], ask.temperature, inverse);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!(w[i] >= ask.lowest)) w[i] = -INFINITY;
      any = any || w[i] > -87.f;
    }
    if (__any_sync(~0u, any)) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) w[i] = exp_nonpositive(w[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) w[i] = 0;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (base + i * kThreads < padded) v.at(base + i * kThreads) = w[i];
      if (!some || w[i] == 0) continue;
      const uint32_t bits = __float_as_uint(w[i]), mantissa = (bits & 0x7fffff) | 0x800000;
      atomicAdd(&exponents[0][bits >> 23], mantissa & 0xfff);
      atomicAdd(&exponents[1][bits >> 23], mantissa >> 12);
    }
  }
  __syncthreads();
  if (some) {
    const uint64_t need = reach_top_p<kCluster>(s, double(ask.top_p));
    const uint32_t exponent = s.exponent;
    const uint64_t p_cut = find_cut<kCluster, true>(
        s,
        v,
        [&](int e, float held, float& x, uint32_t& counts) {
          const uint32_t bits = __float_as_uint(held);
          if (bits >> 23 != exponent) return false;
          x = logits[e], counts = (bits & 0x7fffff) | 0x800000;
          return true;
        },
        need,
        0,
        most + ask.temperature * 0.6931472f * float(int(exponent) - 126),
        float(kBins) / (ask.temperature * 0.6931472f),
        turn);
    v.each(v.count, [&](int e, float w) {
      const uint32_t own = __float_as_uint(w) >> 23;
      if (own < exponent || (own == exponent && order_of(logits[e], v.first + e) < p_cut)) v.at(e) = 0;
    });
    __syncthreads();
  }

  for (int base = 0; base < padded / kBlock * 8; base += kThreads) {  // eight threads a block of the row
    const int task = base + threadIdx.x, b = task / 8;
    double sum = 0;
    if (task < padded / kBlock * 8)
#pragma unroll 8
      for (int i = 0; i < kBlock / 8; ++i) sum += double(v.x[b * kStride + i * 8 + task % 8]);
    double all = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) all += __shfl_sync(~0u, sum, lane / 8 * 8 + i);
    if (task < padded / kBlock * 8 && task % 8 == 0) *in_block(&sums[v.rank * per_rank + b], 0) = all;
  }
  cluster_sync();
  if (v.rank == 0) {
    const int token = draw(s, v, sums, blocks, per_rank, uniform(ask.seed, ask.choice, ask.position));
    if (threadIdx.x == 0) p.token[row] = token;
  }
  cluster_sync();  // no block leaves while its memory may be read
}

template <int kCluster>
void start(const SampleLaunch& p, Stream& stream) {
  static const bool ready = [] {
    SE_CUDA(cudaFuncSetAttribute(sample_kernel<kCluster>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 int(kMostShared - kStaticShared)));
    SE_CUDA(cudaFuncSetAttribute(
        sample_kernel<kCluster>, cudaFuncAttributeNonPortableClusterSizeAllowed, kCluster > 8));
    return true;
  }();
  (void)ready;
  const int64_t blocks = (p.vocab + kBlock - 1) / kBlock, per_rank = (blocks + kCluster - 1) / kCluster;
  launch_clusters(sample_kernel<kCluster>,
                  dim3(kCluster, unsigned(p.rows)),
                  kCluster,
                  kThreads,
                  per_rank * kStride * 4 + blocks * 8,
                  -1,
                  stream.get(),
                  p);
}

}  // namespace

void sample(const SampleLaunch& p, Stream& stream) {
  if (p.rows < 1) return;
  if (p.vocab < 1 || p.vocab > kSampleVocab) {
    std::fprintf(stderr,
                 "sample: %lld logits a row: expected 1 to %lld\n",
                 static_cast<long long>(p.vocab),
                 static_cast<long long>(kSampleVocab));
    std::abort();
  }
  p.rows <= kFewRows ? start<16>(p, stream) : start<8>(p, stream);
}

}  // namespace se::cuda
