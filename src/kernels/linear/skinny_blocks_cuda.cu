// A warp takes 16 rows of w at a time, in chunks of 256 of k, through a ring of its own in shared memory:
// rows begin at any even address, so what is copied are the aligned 16 bytes that cover a chunk. Codes become
// the operand A (8 bits) of the tensor cores, whatever order of k suits their layout, and the quantised
// activations B: eight rows cost what one costs.
#include <cuda_fp16.h>

#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/linear/skinny_blocks_cuda.h"

namespace se::cuda {
namespace {

constexpr int kWarps = 8, kRows = 16, kTokens = kSkinnyBlocksRows, kChunk = 256;
constexpr int kMostShared = 226 << 10;
constexpr float kTiny = 1e-30f;  // of linear_routines.h

template <BlockWeight kType>
struct Format {
  static constexpr int kBytes = kType == BlockWeight::kQ8_0 ? 272 : kType == BlockWeight::kQ4_K ? 144 : 210;
  static constexpr int kPieces = kType == BlockWeight::kQ4_K ? 9 : (kBytes + 14 + 15) / 16;
  static constexpr int kPitch = kPieces * 16 + 16;
  static constexpr int kStage = kRows * kPitch, kStages = 3;
  static constexpr int kBlocksPerProcessor = kType == BlockWeight::kQ8_0 ? 1 : 2;
};

__device__ __forceinline__ void mma32(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a0), "r"(a1), "r"(b));
}

__device__ __forceinline__ float half_at(const char* p) {
  return __half2float(*reinterpret_cast<const __half*>(p));
}
__device__ __forceinline__ uint32_t word(const char* p) { return *reinterpret_cast<const uint32_t*>(p); }
// Four bytes at an even address.
__device__ __forceinline__ uint32_t even_word(const char* base, int at) {
  const char* p = base + (at & ~3);
  return __funnelshift_r(word(p), word(p + 4), (at & 2) * 8);
}

struct Input {       // activations in shared memory
  int8_t* q;         // [8][pitch]
  float *d, *d_sum;  // [blocks][8]
  int pitch;
};

// As quantise of linear_ref.cc: the same codes, factors and sums; zeros for rows that are not there. All
// threads; ends with a barrier.
__device__ void quantise(const SkinnyBlocksParams& p, const Input& in) {
  constexpr int kAtOnce = 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = p.k / 32, all = blocks * p.rows;
  for (int i = threadIdx.x; i < (kTokens - p.rows) * in.pitch / 4; i += kWarps * 32)
    reinterpret_cast<uint32_t*>(in.q + p.rows * in.pitch)[i] = 0;
  for (int i = threadIdx.x; i < blocks * kTokens; i += kWarps * 32)
    if (i % kTokens >= p.rows) in.d[i] = in.d_sum[i] = 0;
  for (int base = warp; base < all; base += kAtOnce * kWarps) {
    float v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)  // x is [rows, blocks, 32]
      v[i] = base + i * kWarps < all ? p.x[int64_t(base + i * kWarps) * 32 + lane] : 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = base + i * kWarps, t = at / blocks, block = at - t * blocks;
      if (at >= all) break;
      const float most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(v[i]) & 0x7fffffffu));
      const bool tiny = most < kTiny;
      const float d = tiny ? 0 : __fdiv_rn(most, 127.f), inverse = tiny ? 0 : __fdiv_rn(127.f, most);
      const float scaled = __fmul_rn(v[i], inverse);
      const int q = scaled == scaled ? __float2int_rn(scaled) : -128;
      in.q[t * in.pitch + block * 32 + lane] = int8_t(q);
      const int sum = __reduce_add_sync(~0u, q);
      if (lane == 0) {
        in.d[block * kTokens + t] = d;
        in.d_sum[block * kTokens + t] = __fmul_rn(d, float(sum));
      }
    }
  }
  __syncthreads();
}

// sum: of one block of 32, rows g and g + 8 x tokens 2 c, + 1; d: of the rows.
__device__ __forceinline__ void add_block(float (&all)[4],
                                          const int (&sum)[4],
                                          const float (&d)[2],
                                          float2 x) {
  all[0] = __fmaf_rn(__fmul_rn(d[0], x.x), float(sum[0]), all[0]);
  all[1] = __fmaf_rn(__fmul_rn(d[0], x.y), float(sum[1]), all[1]);
  all[2] = __fmaf_rn(__fmul_rn(d[1], x.x), float(sum[2]), all[2]);
  all[3] = __fmaf_rn(__fmul_rn(d[1], x.y), float(sum[3]), all[3]);
}

// One chunk of a tile; row[h]: rows g + 8 h of it in shared memory, which begin at byte `at[h]`, even.
template <BlockWeight kType>
__device__ __forceinline__ void use_chunk(const char* const (&row)[2],
                                          const int (&at)[2],
                                          const Input& in,
                                          int chunk,
                                          int blocks,
                                          float (&all)[4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int8_t* xq = in.q + g * in.pitch + chunk * kChunk;
  const float *xd = in.d + chunk * 8 * kTokens + 2 * c, *xs = in.d_sum + chunk * 8 * kTokens + 2 * c;
  const auto pair = [](const float* p) { return *reinterpret_cast<const float2*>(p); };
  if constexpr (kType == BlockWeight::kQ8_0) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j >= blocks) break;
      uint32_t a[4];
      float d[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int from = at[h] + j * 34 + 2 + 8 * c, shift = (from & 2) * 8;
        const char* p = row[h] + (from & ~3);
        const uint32_t w0 = word(p), w1 = word(p + 4), w2 = word(p + 8);
        a[h] = __funnelshift_r(w0, w1, shift), a[2 + h] = __funnelshift_r(w1, w2, shift);
        d[h] = half_at(row[h] + at[h] + j * 34);
      }
      const uint2 b = *reinterpret_cast<const uint2*>(xq + j * 32 + 8 * c);
      int sum[4] = {};
      mma32(sum, a, b.x, b.y);
      add_block(all, sum, d, pair(xd + j * kTokens));
    }
  } else if constexpr (kType == BlockWeight::kQ4_K) {
    float d[2], least[2];
    uint32_t scales[2][2], minima[2][2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 head = *reinterpret_cast<const uint4*>(row[h]);
      const __half2 both = reinterpret_cast<const __half2&>(head.x);
      d[h] = __low2float(both), least[h] = __high2float(both);
      scales[h][0] = head.y & 0x3f3f3f3fu, minima[h][0] = head.z & 0x3f3f3f3fu;
      scales[h][1] = (head.w & 0x0f0f0f0fu) | (head.y >> 6 & 0x03030303u) << 4;
      minima[h][1] = (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 6 & 0x03030303u) << 4;
    }
#pragma unroll
    for (int two = 0; two < 4; ++two) {
      uint2 codes[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) codes[h] = *reinterpret_cast<const uint2*>(row[h] + 16 + 32 * two + 8 * c);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int j = 2 * two + e;
        const uint32_t a[4] = {codes[0].x >> 4 * e & 0x0f0f0f0fu,
                               codes[1].x >> 4 * e & 0x0f0f0f0fu,
                               codes[0].y >> 4 * e & 0x0f0f0f0fu,
                               codes[1].y >> 4 * e & 0x0f0f0f0fu};
        const uint2 b = *reinterpret_cast<const uint2*>(xq + j * 32 + 8 * c);
        int sum[4] = {};
        mma32(sum, a, b.x, b.y);
        const float2 s = pair(xs + j * kTokens);
        float scaled[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          scaled[h] = __fmul_rn(d[h], float(scales[h][j / 4] >> j % 4 * 8 & 0xff));
          const float m = -__fmul_rn(least[h], float(minima[h][j / 4] >> j % 4 * 8 & 0xff));
          all[2 * h] = __fmaf_rn(m, s.x, all[2 * h]), all[2 * h + 1] = __fmaf_rn(m, s.y, all[2 * h + 1]);
        }
        add_block(all, sum, scaled, pair(xd + j * kTokens));
      }
    }
  } else {
    const float d[2] = {half_at(row[0] + at[0] + 208), half_at(row[1] + at[1] + 208)};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t low[2][2][2], top[2][2];  // [row][quarter % 2][16 of the 32], [row][16 of the 32]
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int s = 0; s < 2; ++s) {
#pragma unroll
          for (int odd = 0; odd < 2; ++odd)
            low[h][odd][s] = even_word(row[h], at[h] + 64 * half + 32 * odd + 16 * s + 4 * c);
          top[h][s] = even_word(row[h], at[h] + 128 + 32 * half + 16 * s + 4 * c);
        }
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {
        const int j = 4 * half + quarter;
        int sum[4] = {};
        int scale[2][2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const char2 two = *reinterpret_cast<const char2*>(row[h] + at[h] + 192 + 8 * half + 2 * quarter);
          scale[h][0] = two.x, scale[h][1] = two.y;
        }
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          uint32_t a[2];
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint32_t code = (low[h][quarter % 2][s] >> quarter / 2 * 4 & 0x0f0f0f0fu) |
                                  (top[h][s] >> quarter * 2 & 0x03030303u) << 4;
            a[h] = ((code | 0x80808080u) - 0x20202020u) ^ 0x80808080u;  // less 32, byte by byte
          }
          int part[4] = {};
          mma16(part, a[0], a[1], word(reinterpret_cast<const char*>(xq + j * 32 + 16 * s + 4 * c)));
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[i] += scale[i / 2][s] * part[i];
        }
        add_block(all, sum, d, pair(xd + j * kTokens));
      }
    }
  }
}

template <BlockWeight kType>
__global__ __launch_bounds__(kWarps * 32, Format<kType>::kBlocksPerProcessor) void blocks_kernel(
    const __grid_constant__ SkinnyBlocksParams p, int share, int64_t row_bytes) {
  using F = Format<kType>;
  extern __shared__ __align__(16) char shared[];
  __shared__ float sums[kWarps][kRows * kTokens];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int blocks = p.k / 32, chunks = (blocks + 7) / 8, part = warp % share, mine = chunks / share;
  const int tiles = (p.n + kRows - 1) / kRows, tile_step = gridDim.x * (kWarps / share);
  char* ring = shared + warp * F::kStages * F::kStage;
  Input in;
  in.pitch = chunks * kChunk + 32;
  in.q = reinterpret_cast<int8_t*>(shared + kWarps * F::kStages * F::kStage);
  in.d = reinterpret_cast<float*>(in.q + kTokens * in.pitch), in.d_sum = in.d + blocks * kTokens;

  const char* w = static_cast<const char*>(p.w);
  const int first_tile = blockIdx.x * (kWarps / share) + warp / share;
  struct Cursor {
    int tile, i = 0, stage = 0;
  } ahead{first_tile}, here{first_tile};
  const auto advance = [&](Cursor& x) {
    if (++x.i == mine) x.i = 0, x.tile += tile_step;
    if (++x.stage == F::kStages) x.stage = 0;
  };
  const auto load = [&] {
    if (ahead.tile < tiles) {
      const uint32_t to = uint32_t(__cvta_generic_to_shared(ring)) + ahead.stage * F::kStage;
      const int64_t chunk_at = int64_t(part + share * ahead.i) * F::kBytes;
      const int bytes = int(min(int64_t(F::kBytes), row_bytes - chunk_at));
#pragma unroll
      for (int i = 0; i < (kRows * F::kPieces + 31) / 32; ++i) {
        const int piece = i * 32 + lane, row = piece / F::kPieces, at = piece % F::kPieces * 16;
        if (row >= kRows) break;
        const int64_t from = int64_t(min(ahead.tile * kRows + row, p.n - 1)) * row_bytes + chunk_at;
        const int before = int(from & 15);  // w itself is aligned
        const char* source = w + from - before + at;
        if (at < before + bytes) copy16(to + row * F::kPitch + at, source, true);
      }
      advance(ahead);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
#pragma unroll
  for (int i = 0; i < F::kStages - 1; ++i) load();
  pdl_wait();
  pdl_release();
  quantise(p, in);

  // All warps of a block go through as many rounds: those that share a tile meet at its end.
  for (int base = blockIdx.x * (kWarps / share); base < tiles; base += tile_step) {
    float all[4] = {};
    const int tile = here.tile;
    if (tile < tiles) {
      for (int i = 0; i < mine; ++i) {
        asm volatile("cp.async.wait_group %0;" ::"n"(F::kStages - 2) : "memory");
        __syncwarp();
        const int chunk = part + share * i;
        const char* row[2];
        int at[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          row[h] = ring + here.stage * F::kStage + (g + 8 * h) * F::kPitch;
          at[h] = int(min(tile * kRows + g + 8 * h, p.n - 1) * row_bytes + int64_t(chunk) * F::kBytes) & 15;
        }
        advance(here);
        load();  // into the stage before this one, which every lane has left
        use_chunk<kType>(row, at, in, chunk, blocks - chunk * 8, all);
      }
    }
    if (share > 1) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[warp][(g + i / 2 * 8) * kTokens + 2 * c + i % 2] = all[i];
      __syncthreads();
      if (part > 0) continue;
      for (int s = 1; s < share; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) all[i] += sums[warp + s][(g + i / 2 * 8) * kTokens + 2 * c + i % 2];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int o = tile * kRows + g + i / 2 * 8, t = 2 * c + i % 2;
      if (o >= p.n || t >= p.rows) continue;
      const int64_t to = int64_t(t) * p.n + o;
      float y = all[i];
      if (p.bias) y = y + p.bias[o];
      if (p.residual) y = y + p.residual[to];
      p.y[to] = y;
    }
  }
}

[[noreturn]] void wrong(const SkinnyBlocksParams& p) {
  std::fprintf(stderr,
               "skinny_blocks: [%d, %d] of type %d x %d rows: expected whole blocks, up to %d rows, at most "
               "about 11,000 of k (Q8_0), 16,500 (Q4_K), 13,400 (Q6_K)\n",
               p.n,
               p.k,
               int(p.type),
               p.rows,
               kSkinnyBlocksRows);
  std::abort();
}

template <BlockWeight kType>
void start(const SkinnyBlocksParams& p, Stream& stream) {
  using F = Format<kType>;
  const int blocks = p.k / 32, chunks = (blocks + 7) / 8, tiles = (p.n + kRows - 1) / kRows;
  int share = 1;  // warps of a tile: as many as fill the processors, of n and k alone
  while (share < kWarps && tiles * share < 1056 && chunks % (2 * share) == 0) share *= 2;
  const int64_t bytes =
      kWarps * F::kStages * F::kStage + kTokens * (chunks * kChunk + 32) + int64_t(blocks) * kTokens * 8;
  if (bytes + kWarps * kRows * kTokens * 4 > kMostShared) wrong(p);
  static const int processors = [] {
    int device = 0, n = 0;
    SE_CUDA(cudaGetDevice(&device));
    SE_CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
    SE_CUDA(cudaFuncSetAttribute(blocks_kernel<kType>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 kMostShared - kWarps * kRows * kTokens * 4));
    return n;
  }();
  int fit = 0;
  SE_CUDA(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, blocks_kernel<kType>, kWarps * 32, size_t(bytes)));
  const int each = kWarps / share, wanted = (tiles + each - 1) / each,
            most = processors * (fit < 1 ? 1 : fit);
  launch(blocks_kernel<kType>,
         dim3(unsigned(wanted < most ? wanted : most)),
         kWarps * 32,
         bytes,
         stream.get(),
         p,
         share,
         block_row_bytes(kType, p.k));
}

}  // namespace

int64_t block_row_bytes(BlockWeight type, int k) {
  if (type == BlockWeight::kQ8_0) return int64_t(k) / 32 * 34;
  return int64_t(k) / 256 * (type == BlockWeight::kQ4_K ? 144 : 210);
}

void skinny_blocks(const SkinnyBlocksParams& p, Stream& stream) {
  const int whole = p.type == BlockWeight::kQ8_0 ? 32 : 256;
  if (p.rows < 1 || p.rows > kSkinnyBlocksRows || p.n < 1 || p.k < whole || p.k % whole != 0) wrong(p);
  switch (p.type) {
    case BlockWeight::kQ8_0:
      return start<BlockWeight::kQ8_0>(p, stream);
    case BlockWeight::kQ4_K:
      return start<BlockWeight::kQ4_K>(p, stream);
    case BlockWeight::kQ6_K:
      return start<BlockWeight::kQ6_K>(p, stream);
  }
}

}  // namespace se::cuda
