// Split decode attention over latents. Tiles of 64 keys are the rows of the matrix products and the heads
// their columns, both pieces at once, so that 20 heads cost 48 columns: scores = keys x q, values = keys
// turned x weights. Four warps bring the tiles to two places; two warpgroups work out the scores and weights
// of every other tile each, then both add the tile's values up, each for half of the channels. At the end
// blocks merge the splits (latent_merge_cuda.cuh).
//
// Weights are powers of two over a base that all tiles of a split share. The base is the first tile's top and
// moves only when a score is 8 above it: sums stay in range, and a tile rarely needs its exact top.
#include <algorithm>
#include <bit>

#include "device/cuda/hopper.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/attention/latent_merge_cuda.cuh"

namespace se::cuda {
namespace {

constexpr int kTile = 64, kWide = kLatentKey / 64, kPieces = kTile / 16;
constexpr int kGroup = kWide * 1024;           // bytes of 8 keys: 9 x 8 rows of 128
constexpr int kKeys = kTile / 8 * kGroup;      // of a tile
constexpr int kQueryBlock = 2 * kHeads * 128;  // 64 channels (or keys) of both pieces of all heads
constexpr int kReaders = 256, kThreads = kReaders + 128;
constexpr float kRoom = 8;  // a score may be so far above the base

struct Shared {  // at a multiple of 1,024 bytes
  char k[2][kKeys];
  char q[kWide * kQueryBlock];
  char weights[2][kQueryBlock];
  float tops[4][kHeads], totals[8][kHeads];  // of warps
  float base[kHeads];
  int version;  // of the base
  Unit unit;    // the first that the block merges, and its scores with present tokens
  float dots[kDots][8];
  uint64_t unit_found;
  uint32_t there[2][kPieces];
  uint64_t full[2], ready[2], empty[2][kPieces];  // ready: the tile's weights and base
};

// As copy16, of what is not read again: the first to leave L2.
__device__ __forceinline__ void copy16_once(uint32_t to, const void* from, bool there, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to),
               "l"(from),
               "r"(there ? 16 : 0),
               "l"(policy)
               : "memory");
}

// Four warps, each the same 16 keys of every tile: lane l has the slot of key l % 16, and brings 16 bytes of
// every 128 of four keys.
__device__ __forceinline__ void produce(const DecodeParams& p, int columns, Shared& s) {
  const int lane = threadIdx.x % 32, piece = threadIdx.x / 32 - kReaders / 32;
  int n = 0;
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  for (int item = blockIdx.x;; item += gridDim.x) {
    const Item it = find_item(p, item, lane);
    if (n == 0 && p.ahead == DecodeAhead::kTables) pdl_wait();
    if (it.entry < 0) break;
    const auto fetch = [&](int place) {
      return place < it.last ? p.runs[it.start + (place >> p.unit_shift)] : int64_t(0);
    };
    int place = it.first + piece * 16 + lane % 16;
    int64_t next = fetch(place);
    const int tiles = it.tiles(kTile);
    for (int t = 0; t < tiles; ++t, ++n, place += kTile) {
      const int64_t run = next;
      next = fetch(place + kTile);
      const int in = place & ((1 << p.unit_shift) - 1);
      const uint32_t there = __ballot_sync(~0u, in < int(run & 0xffff)) & 0xffff;
      const int64_t slot = (run >> 16) + it.offset + in;
      const char* key =
          p.k + (slot >> p.page_shift) * p.page_stride + (slot & ((1 << p.page_shift) - 1)) * p.item_stride;
      const int stage = n % 2;
      barrier_wait(shared_address(&s.empty[stage][piece]), n / 2 % 2 ^ 1);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = i * 4 + lane / 8;
        const char* from =
            reinterpret_cast<const char*>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(key), k)) +
            lane % 8 * 16;
        const uint32_t to =
            shared_address(s.k[stage]) + (piece * 2 + i / 2) * kGroup + k % 8 * 128 + ((lane ^ k) & 7) * 16;
#pragma unroll
        for (int b = 0; b < kWide; ++b) copy16_once(to + b * 1024, from + b * 128, there >> k & 1, policy);
      }
      const uint32_t full = shared_address(&s.full[stage]);
      barrier_arrive_copied(full);
      if (lane == 0) s.there[stage][piece] = there, barrier_arrive(full);
    }
  }
  pdl_wait();
  const Unit u = find_unit(p, blockIdx.x, columns);
  if (lane == 0 && piece == 0) s.unit = u;
  if (u.there)
    for (int j = u.from; j <= min(u.token, u.from + kDots - 1); ++j)
      for (int h = piece; h < 8; h += kPieces) {
        const float dot = dot_with(p, u, h, j);
        if (lane == 0) s.dots[j - u.from][h] = dot;
      }
  if (lane == 0) barrier_arrive(shared_address(&s.unit_found));
  asm volatile("cp.async.wait_all;" ::: "memory");  // a warp does not end before its copies
}

// The queries of a slice as two BF16 pieces, heads that are not there as zeros. All loads are under way at
// once.
__device__ __forceinline__ void take_queries(const DecodeParams& p, const Item& it, char* q) {
  constexpr int kFours = kLatentKey / 4, kRounds = (kHeads * kFours + kReaders - 1) / kReaders;
  const int heads = min(kHeads, p.group - it.slice * kHeads);
  const float* from = p.q + it.token * p.q_token + it.slice * kHeads * p.q_head;
  float4 v[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int at = i * kReaders + threadIdx.x, h = at / kFours;
    v[i] = h < heads ? *reinterpret_cast<const float4*>(from + h * p.q_head + (at - h * kFours) * 4)
                     : float4{0, 0, 0, 0};
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int at = i * kReaders + threadIdx.x, h = at / kFours, c = at - h * kFours;
    if (h >= kHeads) break;
    uint2 high, rest;
    pieces<__nv_bfloat16>(v[i].x, v[i].y, high.x, rest.x),
        pieces<__nv_bfloat16>(v[i].z, v[i].w, high.y, rest.y);
    char* to = q + c / 16 * kQueryBlock + h / 8 * 1024 + (h & 7) * 128 + ((c / 2 ^ h) & 7) * 16 + c % 2 * 8;
    *reinterpret_cast<uint2*>(to) = high;
    *reinterpret_cast<uint2*>(to + kHeads * 128) = rest;
  }
}

// Is `x` true for any of the 128 threads that meet at barrier `id`?
__device__ __forceinline__ bool any_of_128(int id, bool x) {
  int any;
  asm volatile(
      "{ .reg .pred a, b; setp.ne.s32 a, %2, 0; bar.red.or.pred b, %1, 128, a; selp.s32 %0, 1, 0, b; }"
      : "=r"(any)
      : "r"(id), "r"(int(x))
      : "memory");
  return any != 0;
}

// Four 8 x 8 matrices of 16-bit numbers, turned: lane l gives where row l % 8 of matrix l / 8 goes, which is
// a column of what the lanes hold (as the results of a product).
__device__ __forceinline__ void store_turned(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(a),
               "r"(b),
               "r"(c),
               "r"(d)
               : "memory");
}

// A thread's share of a split. Columns of products: heads 8 (j / 2) + 2 c + j % 2 for lane 4 g + c, first the
// high pieces, then the rest. The sums are of channels 256 group + 64 m + 16 warp + g (+ 8).
struct Sums {
  float o[4][24];
  float base[6], total[6];  // total: over this thread's keys

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int i = 0; i < 24; ++i) o[m][i] = 0;
#pragma unroll
    for (int j = 0; j < 6; ++j) base[j] = -INFINITY, total[j] = 0;
  }
  __device__ __forceinline__ void move_base(const float (&to)[6]) {
#pragma unroll
    for (int j = 0; j < 6; ++j) {
      const float f = to[j] == -INFINITY ? 1 : power2(base[j] - to[j]);
      base[j] = to[j], total[j] *= f;
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int i = j / 2 * 4 + j % 2; i < 24; i += 12) o[m][i] *= f, o[m][i + 2] *= f;
    }
  }
};

__device__ __forceinline__ void read_heads(const float* from, int c, float (&x)[6]) {
#pragma unroll
  for (int j = 0; j < 6; j += 2) {
    const float2 two = *reinterpret_cast<const float2*>(from + j * 4 + 2 * c);
    x[j] = two.x, x[j + 1] = two.y;
  }
}
__device__ __forceinline__ void write_heads(float* to, int c, const float (&x)[6]) {
#pragma unroll
  for (int j = 0; j < 6; j += 2) *reinterpret_cast<float2*>(to + j * 4 + 2 * c) = {x[j], x[j + 1]};
}

// One warpgroup: a tile's weights. Returns whether the base has moved.
__device__ __forceinline__ bool weigh(const DecodeParams& p, Shared& s, int stage, Sums& sums) {
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32 % 4, own = 2 + stage;
  const uint32_t k_at = shared_address(s.k[stage]), q_at = shared_address(s.q);
  float x[24];
  wgmma_begin();
#pragma unroll
  for (int d = 0; d < kLatentKey / 16; ++d)
    wgmma_48(x,
             operand(k_at + d / 4 * 1024 + d % 4 * 32, kGroup),
             operand(q_at + d / 4 * kQueryBlock + d % 4 * 32, 1024),
             d > 0);
  wgmma_commit();
  const uint32_t bits = s.there[stage][warp] >> g;
  wgmma_wait<0>();
  wgmma_take(x);
  const float scale = p.scale * kLog2e;
  float y[6][2];  // of keys 16 warp + g, + 8
  bool above = false;
#pragma unroll
  for (int j = 0; j < 6; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = j / 2 * 4 + r * 2 + j % 2;
      y[j][r] = bits >> (r * 8) & 1 ? (x[at] + x[at + 12]) * scale : -INFINITY;
      above = above || y[j][r] > sums.base[j] + kRoom;
    }
  const bool moved = any_of_128(own, above);
  if (moved) {
    float most[6];
#pragma unroll
    for (int j = 0; j < 6; ++j) {
      most[j] = fmaxf(y[j][0], y[j][1]);
      for (int d = 4; d < 32; d *= 2) most[j] = fmaxf(most[j], __shfl_xor_sync(~0u, most[j], d));
    }
    if (g == 0) write_heads(s.tops[warp], c, most);
    named_sync(own, 128);
#pragma unroll
    for (int j = 0; j < 6; ++j) most[j] = sums.base[j];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float other[6];
      read_heads(s.tops[w], c, other);
#pragma unroll
      for (int j = 0; j < 6; ++j) most[j] = fmaxf(most[j], other[j]);
    }
    if (warp == 0 && g == 0) write_heads(s.base, c, most);
    if (warp == 0 && lane == 0) ++s.version;
    sums.move_base(most);
  }
  const int row = lane % 8, matrix = lane / 8;  // keys + 8 (matrix % 2), the high pieces and then the rest
  const uint32_t to = shared_address(s.weights[stage]) + matrix / 2 * (kHeads * 128) + row * 128 +
                      ((2 * warp + matrix % 2) ^ row) * 16;
#pragma unroll
  for (int j = 0; j < 6; j += 2) {
    uint32_t high[2], rest[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float a = power2(y[j][r] - (sums.base[j] == -INFINITY ? 0 : sums.base[j]));
      const float b = power2(y[j + 1][r] - (sums.base[j + 1] == -INFINITY ? 0 : sums.base[j + 1]));
      sums.total[j] += a, sums.total[j + 1] += b;
      pieces<__nv_bfloat16>(a, b, high[r], rest[r]);
    }
    store_turned(to + j / 2 * 1024, high[0], high[1], rest[0], rest[1]);
  }
  fence_shared_writes();
  __syncwarp();
  if (lane == 0) barrier_arrive(shared_address(&s.ready[stage]));
  return moved;
}

// Adds a tile's values up and gives its pieces back one by one.
__device__ __forceinline__ void add_values(Shared& s, int stage, int group, int lane, Sums& sums) {
  const uint32_t k_at = shared_address(s.k[stage]) + group * 4 * 1024,
                 w_at = shared_address(s.weights[stage]);
  wgmma_begin();
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int m = 0; m < 4; ++m)
      wgmma_48_turned(sums.o[m],
                      operand(k_at + m * 1024 + piece * 2 * kGroup, kGroup),
                      operand(w_at + piece * 32, 1024),
                      1);
    wgmma_commit();
  }
  const auto give_back = [&](int piece) {
    if (lane == 0) barrier_arrive(shared_address(&s.empty[stage][piece]));
  };
  wgmma_wait<3>(), give_back(0);
  wgmma_wait<2>(), give_back(1);
  wgmma_wait<1>(), give_back(2);
  wgmma_wait<0>(), give_back(3);
#pragma unroll
  for (int m = 0; m < 4; ++m) wgmma_take(sums.o[m]);
}

__device__ __forceinline__ void write_part(const DecodeParams& p, const Item& it, Shared& s, Sums& sums) {
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int warp = threadIdx.x / 32, heads = min(kHeads, p.group - it.slice * kHeads);
  const Parts to(p, it.entry, it.split_at);
#pragma unroll
  for (int e = 0; e < kEights; ++e)
    if (e * 8 + 2 * c < heads)
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float* o = sums.o[m] + e * 4;
        put_part(to.sums(m, e, warp, lane), {o[0] + o[12], o[1] + o[13], o[2] + o[14], o[3] + o[15]});
      }
#pragma unroll
  for (int j = 0; j < 6; ++j)
    for (int d = 4; d < 32; d *= 2) sums.total[j] += __shfl_xor_sync(~0u, sums.total[j], d);
  if (g == 0) write_heads(s.totals[warp], c, sums.total);
  named_sync(1, kReaders);
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const int h = e * 8 + 2 * c;
    float2 total{0, 0};
    for (int w = 0; w < 8; ++w) total.x += s.totals[w][h], total.y += s.totals[w][h + 1];
    if (g < 4 && h < heads) put_part(to.state(g, e, warp, c), {s.base[h], total.x, s.base[h + 1], total.y});
  }
}

__device__ __forceinline__ void consume(const DecodeParams& p, int columns, Shared& s) {
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  int n = 0, version = 0;
  for (int item = blockIdx.x;; item += gridDim.x) {
    const Item it = find_item(p, item, lane);
    if (n == 0) pdl_wait(), pdl_release();
    if (it.entry < 0) break;
    named_sync(1, kReaders);  // the last item's q and totals are no longer read
    take_queries(p, it, s.q);
    if (threadIdx.x < kHeads) s.base[threadIdx.x] = -INFINITY;
    fence_shared_writes();
    named_sync(1, kReaders);
    Sums sums;
    sums.clear();
    const int tiles = it.tiles(kTile);
    for (int t = 0; t < tiles; ++t, ++n) {
      const int stage = n % 2;
      const uint32_t phase = n / 2 % 2;
      barrier_wait(shared_address(&s.full[stage]), phase);
      fence_shared_writes();  // of the copies
      if (stage == group) version += weigh(p, s, stage, sums);
      barrier_wait(shared_address(&s.ready[stage]), phase);
      if (stage != group && s.version != version) {
        float now[6];
        read_heads(s.base, lane % 4, now);
        sums.move_base(now);
        ++version;
      }
      add_values(s, stage, group, lane, sums);
    }
    write_part(p, it, s, sums);
  }
  // All blocks are on the device at once, so all parts will come.
  barrier_wait(shared_address(&s.unit_found), 0);
  Unit u = s.unit;
  for (int unit = blockIdx.x; u.there; u = find_unit(p, unit, columns)) {
    if (unit != int(blockIdx.x)) {
      named_sync(1, kReaders);  // the last unit's scores are no longer read
      for (int j = u.from; j <= min(u.token, u.from + kDots - 1); ++j) {
        const float dot = dot_with(p, u, threadIdx.x / 32, j);
        if (lane == 0) s.dots[j - u.from][threadIdx.x / 32] = dot;
      }
    }
    named_sync(1, kReaders);  // they are there; q is no longer read
    merge(p, u, columns, s.dots, *reinterpret_cast<MergeSpace*>(s.q));
    unit += gridDim.x;
  }
}

__global__ __launch_bounds__(kThreads, 1) void latent_kernel(const __grid_constant__ DecodeParams p,
                                                             int columns) {
  extern __shared__ char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw + (1024 - (shared_address(raw) & 1023)) % 1024);
  if (threadIdx.x == kReaders) ask_for_tables(p);
  ask_for_runs(p, kThreads);
  if (threadIdx.x == 0) {
    s.version = 0;
    barrier_init(shared_address(&s.unit_found), kPieces);
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&s.full[i]), 33 * kPieces), barrier_init(shared_address(&s.ready[i]), 4);
      for (int piece = 0; piece < kPieces; ++piece) barrier_init(shared_address(&s.empty[i][piece]), 8);
    }
  }
  __syncthreads();
  if (p.ahead == DecodeAhead::kNothing) pdl_wait();
  if (threadIdx.x < kReaders) {
    registers_up<208>();
    consume(p, columns, s);
  } else {
    registers_down<88>();
    produce(p, columns, s);
  }
}

}  // namespace

void latent_decode(const DecodeParams& p, int grid, Stream& stream) {
  constexpr int kBytes = int(sizeof(Shared)) + 1024;
  static const bool ready = [] {
    SE_CUDA(cudaFuncSetAttribute(latent_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    return true;
  }();
  (void)ready;
  // A unit for each block, but no more than eight columns, which that many warps share.
  const int of_row = (p.group + 7) / 8 * kColumns;
  const int columns = int(std::bit_floor(unsigned(std::clamp(p.cap * of_row / grid, 1, 8))));
  launch(latent_kernel, dim3(unsigned(grid)), kThreads, kBytes, stream.get(), p, columns);
}

}  // namespace se::cuda
