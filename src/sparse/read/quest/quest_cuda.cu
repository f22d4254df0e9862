// A block takes an equal share of a row's units, a warp a KV head of it, tile by tile of 8 units, two tiles
// of bounds on their way ahead of the one in use. A lane reads 16-byte pieces of one unit's bounds straight
// into the B operand (the channels of a step are permuted alike in q, so no shuffle is needed) and the warps'
// maxima meet in shared memory.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/stream.h"
#include "sparse/read/quest/quest_cuda.h"

namespace se::quest::cuda {
namespace {

constexpr int kDim = 128, kTile = 8, kMostWarps = 8, kThreads = 32 * kMostWarps;
constexpr int kPart = 256;                         // units of a block at a time
constexpr int kWarpsOfProcessor = 16, kLeast = 2;  // tiles of a block: as many as are under way at once

__device__ __forceinline__ void pieces(float a, float b, uint32_t& high, uint32_t& rest) {
  const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
  const float2 f = __bfloat1622float2(h);
  const __nv_bfloat162 r = __floats2bfloat162_rn(a - f.x, b - f.y);
  high = reinterpret_cast<const uint32_t&>(h), rest = reinterpret_cast<const uint32_t&>(r);
}

// The A operands of max(q, 0) and min(q, 0), made anew for each tile: registers are dearer here. `spread` is
// kSpread, in another register for the other tile, and volatile, lest the compiler keep the operands after
// all.
constexpr uint32_t kSpread = 0xbb99;  // prmt: the sign of each half in all its bits
__device__ __forceinline__ void by_sign(const uint32_t (&high)[2],
                                        const uint32_t (&rest)[2],
                                        uint32_t spread,
                                        uint32_t (&pos)[4],
                                        uint32_t (&neg)[4]) {
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    uint32_t sign;
    asm volatile("prmt.b32 %0, %1, 0, %2;" : "=r"(sign) : "r"(high[x]), "r"(spread));
    pos[2 * x] = high[x] & ~sign, pos[2 * x + 1] = rest[x] & ~sign;
    neg[2 * x] = high[x] & sign, neg[2 * x + 1] = rest[x] & sign;
  }
}

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint4 load16(const char* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// Two halves as two BF16 pieces each: exact.
__device__ __forceinline__ void half_pieces(uint32_t halves, uint32_t& high, uint32_t& rest) {
  const float2 f = __half22float2(reinterpret_cast<const __half2&>(halves));
  pieces(f.x, f.y, high, rest);
}

// 16 channels of a tile: up += max(q, 0) . hi, down += min(q, 0) . lo; with steps up += max(q, 0) . step,
// down += q . lo.
template <bool kSteps>
__device__ __forceinline__ void add_channels(const uint32_t (&high)[2],
                                             const uint32_t (&rest)[2],
                                             uint32_t spread,
                                             uint32_t h0,
                                             uint32_t h1,
                                             uint32_t l0,
                                             uint32_t l1,
                                             float (&up)[4],
                                             float (&down)[4]) {
  uint32_t pos[4], neg[4];
  by_sign(high, rest, spread, pos, neg);
  if constexpr (kSteps) {
    const uint32_t all[4] = {high[0], rest[0], high[1], rest[1]};
    uint32_t s0, s1, r0, r1;
    half_pieces(h0, s0, r0), half_pieces(h1, s1, r1);
    mma(up, pos, s0, s1), mma(down, all, l0, l1), mma(up, pos, r0, r1);
  } else {
    mma(up, pos, h0, h1), mma(down, neg, l0, l1);
  }
}

template <bool kSteps>
__global__ __launch_bounds__(kThreads, 2) void score_kernel(const __grid_constant__ ScoreParams p) {
  __shared__ float best[kMostWarps][kPart];
  __shared__ int64_t place[kPart];  // of a unit's bounds in its plane
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int g = lane / 4, c = lane % 4, per_page_shift = p.page_shift - p.unit_shift;
  // What the kernel before does not write, all but q, is read ahead of the wait for it, and all tables at
  // once: those of the row that a list in order would name and, for the first row, whose runs begin the pool,
  // the runs too.
  const auto share = [](int units) {
    return ((units + kTile - 1) / kTile + gridDim.x - 1) / gridDim.x * kTile;
  };
  const int listed = blockIdx.y, guess = min(listed, p.rows - 1);
  const int row = p.ids[listed], n = *p.n;
  int units = p.units[guess], token = p.q_start[guess];
  int64_t begin = p.start[guess], offset = p.offset ? p.offset[guess] : 0, ahead = 0;
  const int guessed = int(blockIdx.x * share(int(p.most_units)) + threadIdx.x);
  if (guess == 0 && guessed >> per_page_shift < p.pool) ahead = p.runs[guessed >> per_page_shift];
  if (listed < n && row != guess) {
    units = p.units[row], token = p.q_start[row], begin = p.start[row];
    offset = p.offset ? p.offset[row] : 0;
  }
  if (listed >= n) units = 0;
  const bool is_ahead = row == 0 && guess == 0 && begin == 0;
  const int own = share(units), first = min(units, int(blockIdx.x) * own), end = min(units, first + own);
  bool waited = false;
  const uint32_t spread[2] = {kSpread + (p.kv_heads < 0), kSpread + (p.group < 0)};
  for (int from = first; from < end; from += kPart) {
    const int here = min(kPart, end - from), tiles = (here + kTile - 1) / kTile;
    for (int i = threadIdx.x; i < tiles * kTile; i += blockDim.x) {
      const int unit = min(from + i, units - 1);
      const int64_t run = is_ahead && unit == guessed ? ahead : p.runs[begin + (unit >> per_page_shift)];
      place[i] = (((run >> 16) + offset) >> p.page_shift) * p.page_stride +
                 (unit & ((1 << per_page_shift) - 1)) * p.item_stride;
    }
    for (int i = lane; i < tiles * kTile; i += 32) best[warp][i] = -INFINITY;
    __syncthreads();
    for (int head = warp; head < p.kv_heads; head += warps) {
      uint4 lo[2][kDim / 32], hi[2][kDim / 32];
      const auto load = [&](int t, int x) {
        if (t >= tiles) return;
        const int64_t at = place[t * kTile + g] + head * p.head_stride + c * 16;
#pragma unroll
        for (int b = 0; b < kDim / 32; ++b)
          lo[x][b] = load16(p.lo + at + b * 64), hi[x][b] = load16(p.hi + at + b * 64);
      };
      load(0, 0), load(1, 1);
      if (!waited) {
        se::cuda::pdl_wait();
        se::cuda::pdl_release();
        waited = true;
      }
      const float* q = p.q + token * p.q_token + (head * p.group + min(g, p.group - 1)) * p.q_head;
      float4 raw[kDim / 16];
#pragma unroll
      for (int s = 0; s < kDim / 16; ++s)
        raw[s] = *reinterpret_cast<const float4*>(q + s / 2 * 32 + c * 8 + s % 2 * 4);
      uint32_t high[kDim / 16][2], rest[kDim / 16][2];
#pragma unroll
      for (int s = 0; s < kDim / 16; ++s) {
        pieces(raw[s].x, raw[s].y, high[s][0], rest[s][0]);
        pieces(raw[s].z, raw[s].w, high[s][1], rest[s][1]);
      }
      for (int first = 0; first < tiles; first += 2)
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          const int t = first + x;
          if (t >= tiles) break;
          float up[4] = {}, down[4] = {};
#pragma unroll
          for (int b = 0; b < kDim / 32; ++b) {
            const uint4 &h = hi[x][b], &l = lo[x][b];
            add_channels<kSteps>(high[2 * b], rest[2 * b], spread[x], h.x, h.y, l.x, l.y, up, down);
            add_channels<kSteps>(high[2 * b + 1], rest[2 * b + 1], spread[x], h.z, h.w, l.z, l.w, up, down);
          }
          load(t + 2, x);
          float m[2];  // of units 2c, 2c + 1 of the tile, query head g
#pragma unroll
          for (int y = 0; y < 2; ++y) {
            const float raised = kSteps ? (up[y] + up[y + 2]) * p.levels : up[y] + up[y + 2];
            m[y] = g < p.group ? raised + (down[y] + down[y + 2]) : -INFINITY;
            for (int d = 4; d < 32; d *= 2) m[y] = fmaxf(m[y], __shfl_xor_sync(~0u, m[y], d));
          }
          if (g == 0) {
            float* b = best[warp] + t * kTile + 2 * c;
            b[0] = fmaxf(b[0], m[0]), b[1] = fmaxf(b[1], m[1]);
          }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < here; i += blockDim.x) {
      float m = -INFINITY;
      for (int w = 0; w < warps; ++w) m = fmaxf(m, best[w][i]);
      p.score[listed * p.score_row + from + i] = m;
    }
    __syncthreads();
  }
  if (!waited) se::cuda::pdl_wait();
}

}  // namespace

void score_units(const ScoreParams& p, se::cuda::Stream& stream) {
  if (p.group < 1 || p.group > 8 || p.cap < 1) {
    std::fprintf(
        stderr, "quest scores: group %d of %d rows: expected 1 to 8 query heads a KV head\n", p.group, p.cap);
    std::abort();
  }
  static const int processors = [] {
    int device = 0, n = 0;
    SE_CUDA(cudaGetDevice(&device));
    SE_CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
    return n;
  }();
  const int warps = p.kv_heads < kMostWarps ? p.kv_heads : kMostWarps;
  const int64_t most = (p.most_units + kTile * kLeast - 1) / (kTile * kLeast);
  const int64_t share = processors * (kWarpsOfProcessor / warps) / p.cap, grid = most < share ? most : share;
  static_assert(sizeof(float) * kMostWarps * kPart + sizeof(int64_t) * kPart <= 11 << 10);
  se::cuda::launch_clusters(p.levels > 0 ? score_kernel<true> : score_kernel<false>,
                            dim3(unsigned(grid < 1 ? 1 : grid), unsigned(p.cap)),
                            1,
                            warps * 32,
                            0,
                            kWarpsOfProcessor / warps * (12 << 10),
                            stream.get(),
                            p);
}

}  // namespace se::quest::cuda
