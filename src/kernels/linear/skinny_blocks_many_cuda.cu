// 5 to 8 rows: a warp takes 16 rows of w at a time, in chunks of 256 of k, through a ring of its own in
// shared memory. Codes become the operand A (8 bits) of the tensor cores, whatever order of k suits their
// layout, and the quantised activations B: eight rows cost what one costs. The results are those of
// skinny_blocks_cuda.cu.
#include <algorithm>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/linear/skinny_blocks_cuda.cuh"

namespace se::cuda::blocks {
namespace {

constexpr int kWarps = 8, kRows = 16, kTokens = kSkinnyBlocksRows, kChunk = 256;

// Four bytes at an even address.
__device__ __forceinline__ uint32_t even_word(const char* base, int at) {
  const char* p = base + (at & ~3);
  return __funnelshift_r(word(p), word(p + 4), (at & 2) * 8);
}

template <BlockWeight kType>
struct Format {
  static constexpr int kBytes = kType == BlockWeight::kQ8_0 ? 272 : kType == BlockWeight::kQ4_K ? 144 : 210;
  static constexpr int kPieces = kType == BlockWeight::kQ4_K ? 9 : (kBytes + 14 + 15) / 16;
  static constexpr int kPitch = kPieces * 16 + 16;
  static constexpr int kStage = kRows * kPitch, kStages = 3;
  static constexpr int kBlocksPerProcessor = kType == BlockWeight::kQ8_0 ? 1 : 2;
};

struct Sums {
  float of[4];
};
// Products of 32 codes: rows g and g + 8 x tokens 2 c, + 1.
__device__ __forceinline__ Sums mma32(const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  int c[4] = {kMagic, kMagic, kMagic, kMagic};
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  return {{unmagic(c[0]), unmagic(c[1]), unmagic(c[2]), unmagic(c[3])}};
}
__device__ __forceinline__ void mma16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a0), "r"(a1), "r"(b));
}

// d: of rows g and g + 8; x: of tokens 2 c, + 1.
__device__ __forceinline__ void add_block(float (&all)[4], const Sums& sum, const float (&d)[2], float2 x) {
  all[0] = __fmaf_rn(__fmul_rn(d[0], x.x), sum.of[0], all[0]);
  all[1] = __fmaf_rn(__fmul_rn(d[0], x.y), sum.of[1], all[1]);
  all[2] = __fmaf_rn(__fmul_rn(d[1], x.x), sum.of[2], all[2]);
  all[3] = __fmaf_rn(__fmul_rn(d[1], x.y), sum.of[3], all[3]);
}

// One chunk of a tile; row[h]: rows g + 8 h of it in shared memory, which begin at byte `at[h]`, even.
template <BlockWeight kType>
__device__ __forceinline__ void use_chunk(const char* const (&row)[2],
                                          const int (&at)[2],
                                          const Input<kTokens>& in,
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
      add_block(all, mma32(a, b.x, b.y), d, pair(xd + j * kTokens));
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
        const Sums sum = mma32(a, b.x, b.y);
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
        add_block(
            all, {{float(sum[0]), float(sum[1]), float(sum[2]), float(sum[3])}}, d, pair(xd + j * kTokens));
      }
    }
  }
}

template <BlockWeight kType>
__global__ __launch_bounds__(kWarps * 32, Format<kType>::kBlocksPerProcessor) void many_rows_kernel(
    const __grid_constant__ SkinnyBlocksParams p, int64_t row_bytes) {
  using F = Format<kType>;
  extern __shared__ __align__(16) char shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int blocks = p.k / 32, chunks = (blocks + 7) / 8;
  const int tiles = (p.n + kRows - 1) / kRows, tile_step = gridDim.x * kWarps;
  char* ring = shared + warp * F::kStages * F::kStage;
  Input<kTokens> in;
  in.pitch = chunks * kChunk + 32;
  in.q = reinterpret_cast<int8_t*>(shared + kWarps * F::kStages * F::kStage);
  in.d = reinterpret_cast<float*>(in.q + kTokens * in.pitch), in.d_sum = in.d + blocks * kTokens;
  in.less = reinterpret_cast<int*>(in.d_sum + blocks * kTokens);

  const char* w = static_cast<const char*>(p.w);
  const int first_tile = blockIdx.x * kWarps + warp;
  struct Cursor {
    int tile, i = 0, stage = 0;
  } ahead{first_tile}, here{first_tile};
  const auto advance = [&](Cursor& x) {
    if (++x.i == chunks) x.i = 0, x.tile += tile_step;
    if (++x.stage == F::kStages) x.stage = 0;
  };
  const auto load = [&] {
    if (ahead.tile < tiles) {
      const uint32_t to = uint32_t(__cvta_generic_to_shared(ring)) + ahead.stage * F::kStage;
      const int64_t chunk_at = int64_t(ahead.i) * F::kBytes;
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
  quantise<kTokens>(p, in);

  while (here.tile < tiles) {
    float all[4] = {};
    const int tile = here.tile;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      asm volatile("cp.async.wait_group %0;" ::"n"(F::kStages - 2) : "memory");
      __syncwarp();
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

template <BlockWeight kType>
int bytes_for(int k) {
  const int chunks = (k / 32 + 7) / 8;
  return kWarps * Format<kType>::kStages * Format<kType>::kStage +
         Input<kTokens>::bytes(k / 32, chunks * kChunk + 32);
}

template <BlockWeight kType>
void start(const SkinnyBlocksParams& p, Stream& stream) {
  const auto kernel = many_rows_kernel<kType>;
  static const int processors = [kernel] {
    int device = 0, n = 0;
    SE_CUDA(cudaGetDevice(&device));
    SE_CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
    SE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared));
    return n;
  }();
  const int bytes = bytes_for<kType>(p.k), tiles = (p.n + kRows - 1) / kRows;
  int fit = 0;
  SE_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, kWarps * 32, size_t(bytes)));
  launch(kernel,
         dim3(unsigned(std::min((tiles + kWarps - 1) / kWarps, processors * std::max(fit, 1)))),
         kWarps * 32,
         bytes,
         stream.get(),
         p,
         block_row_bytes(kType, p.k));
}

}  // namespace

bool many_rows_fits(const SkinnyBlocksParams& p) {
  const int bytes = p.type == BlockWeight::kQ8_0   ? bytes_for<BlockWeight::kQ8_0>(p.k)
                    : p.type == BlockWeight::kQ4_K ? bytes_for<BlockWeight::kQ4_K>(p.k)
                                                   : bytes_for<BlockWeight::kQ6_K>(p.k);
  return bytes <= kMostShared;
}

void many_rows(const SkinnyBlocksParams& p, Stream& stream) {
  switch (p.type) {
    case BlockWeight::kQ8_0:
      return start<BlockWeight::kQ8_0>(p, stream);
    case BlockWeight::kQ4_K:
      return start<BlockWeight::kQ4_K>(p, stream);
    case BlockWeight::kQ6_K:
      return start<BlockWeight::kQ6_K>(p, stream);
  }
}

}  // namespace se::cuda::blocks
