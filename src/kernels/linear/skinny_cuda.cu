// Weights go from memory straight into the A operand: a lane reads 16 contiguous bytes of a row, and the
// activations are read in the same permuted order of k. Two chunks are on their way ahead of the one in use,
// across tiles too. A block takes a tile of 16 rows of w at a time and its warps share out k.
#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/rows.cuh"
#include "device/cuda/stream.h"
#include "kernels/linear/skinny_short_cuda.h"
#include "kernels/linear/skinny_wide_cuda.h"

namespace se::cuda {
namespace {

constexpr int kMostWarps = 8, kPad = 8, kMostShared = 226 << 10, kLong = 65536;

enum Input {
  kOneRow,  // f32, one row
  kPairs,   // f32, up to 8 rows: rounded two at a time (fewer registers: long w)
  kFloats   // f32, up to 8 rows, four at a time: rounded into shared memory, normalised on the way if wanted
};

template <bool kFp8>
struct Config {
  static constexpr int kElements = kFp8 ? 16 : 8;        // of w in 16 bytes
  static constexpr int kLoads = 4;                       // of a lane per row of w and chunk
  static constexpr int kChunk = 4 * kElements * kLoads;  // k of a chunk
  static constexpr int kPieces = kFp8 ? 1 : 2;           // 16-bit pieces of an activation
  static constexpr int kM = 16, kN = 8;
  static int64_t shared_bytes(int k, int rows, int warps) {
    const int64_t sums = 2 * int64_t(warps) * kM * (kN + 1) * 4;
    return sums + int64_t(kPieces) * rows * (k + kPad) * 2;
  }
};

template <bool kFp8, Input kInput>
__global__ __launch_bounds__(kMostWarps * 32, 2) void skinny_kernel(const __grid_constant__ SkinnyParams p,
                                                                    int chunks) {
  using C = Config<kFp8>;
  using T = std::conditional_t<kFp8, __half, __nv_bfloat16>;
  constexpr int kM = C::kM, kN = C::kN;
  extern __shared__ __align__(16) char shared[];
  float* sums = reinterpret_cast<float*>(shared);  // [2][warps][kM][kN + 1]; first: take_rows
  const int warps = blockDim.x / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4,
            c = lane % 4;
  const int half = warps * kM * (kN + 1);
  uint16_t* xs = reinterpret_cast<uint16_t*>(shared + half * 8);  // [pieces][rows][k + pad]
  const int64_t row_bytes = int64_t(p.k) * (kFp8 ? 1 : 2), pitch = p.k + kPad;
  // Where a warp reads next: rows from `row` on, chunk `chunk` of k, the i-th that it takes of this tile.
  struct Cursor {
    int row, chunk, i = 0;
  };
  const int stride = gridDim.x * kM, chunk_step = warps;
  const Cursor begin{int(blockIdx.x) * kM, warp};
  const auto advance = [&](Cursor& x) {
    x.chunk += chunk_step;
    if (++x.i == chunks) x.i = 0, x.chunk = begin.chunk, x.row += stride;
  };

  struct Chunk {
    uint4 w[2][C::kLoads];
    float factor[2];
  } held[2];
  Cursor ahead = begin, here = begin;
  const auto load = [&](Chunk& x) {
    if (ahead.row >= p.n) return;
    const int first = ahead.row, chunk = ahead.chunk;
    advance(ahead);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = min(first + h * 8 + g, p.n - 1);
      const char* from = static_cast<const char*>(p.w) + row * row_bytes + chunk * C::kLoads * 64 + c * 16;
#pragma unroll
      for (int j = 0; j < C::kLoads; ++j) x.w[h][j] = stream16(from + j * 64);
    }
    if constexpr (kFp8) {
      const float* f = p.w_scale + int64_t(first / 128) * (p.k / 128) + chunk * C::kChunk / 128;
      x.factor[0] = __ldg(f), x.factor[1] = __ldg(f + 1);
    }
  };
  load(held[0]), load(held[1]);
  pdl_wait();
  pdl_release();

  constexpr int kGroup = kInput == kOneRow ? 1 : kInput == kPairs ? 2 : 4;
  for (int r0 = 0; r0 < p.rows; r0 += kGroup) {
    take_rows<kGroup>(p.x, p.k, r0, p.rows, p.norm, p.eps, sums, [&](int r, int at, const float4& v) {
      uint2 high, rest;
      pieces<T>(v.x, v.y, high.x, rest.x), pieces<T>(v.z, v.w, high.y, rest.y);
      if (r0 + r >= p.rows) return;
      *reinterpret_cast<uint2*>(xs + (r0 + r) * pitch + at) = high;
      if (C::kPieces == 2) *reinterpret_cast<uint2*>(xs + (p.rows + r0 + r) * pitch + at) = rest;
    });
    __syncthreads();
  }
  float all[4] = {};
  int parity = 0;
  const auto use = [&](Chunk& x) {
    const int chunk = here.chunk, begin = here.row;
    advance(here);
    float sum[4] = {};
#pragma unroll
    for (int j = 0; j < C::kLoads; ++j) {
      const int k = chunk * C::kChunk + (j * 4 + c) * C::kElements;
      uint32_t b[C::kPieces][C::kElements / 2];
      const int row = min(g, p.rows - 1);
#pragma unroll
      for (int y = 0; y < C::kPieces; ++y)
#pragma unroll
        for (int i = 0; i < C::kElements / 8; ++i) {
          const uint4 v = *reinterpret_cast<const uint4*>(xs + (y * p.rows + row) * pitch + k + i * 8);
          b[y][4 * i] = v.x, b[y][4 * i + 1] = v.y, b[y][4 * i + 2] = v.z, b[y][4 * i + 3] = v.w;
        }
      const uint4 &top = x.w[0][j], &low = x.w[1][j];
      const uint32_t t[4] = {top.x, top.y, top.z, top.w}, l[4] = {low.x, low.y, low.z, low.w};
#pragma unroll
      for (int s = 0; s < C::kElements / 4; ++s) {
        uint32_t a[4];
        if constexpr (kFp8) {
          e4m3_to_half(t[s], a[0], a[2]), e4m3_to_half(l[s], a[1], a[3]);
        } else {
          a[0] = t[2 * s], a[2] = t[2 * s + 1], a[1] = l[2 * s], a[3] = l[2 * s + 1];
        }
#pragma unroll
        for (int y = 0; y < C::kPieces; ++y) mma(sum, a, b[y][2 * s], b[y][2 * s + 1], T());
      }
      if (!kFp8 ? j + 1 == C::kLoads : (j + 1) * 64 % 128 == 0) {  // the end of a block of 128
#pragma unroll
        for (int i = 0; i < 4; ++i) all[i] += (kFp8 ? x.factor[j / 2] : 1.f) * sum[i], sum[i] = 0;
      }
    }
    load(x);
    if (here.i != 0) return;  // the tile goes on
    float* to = sums + parity * half;
    parity ^= 1;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[(warp * kM + i / 2 * 8 + g) * (kN + 1) + 2 * c + i % 2] = all[i];
      all[i] = 0;
    }
    __syncthreads();  // the other half of `sums` is free by the next one
    for (int i = threadIdx.x; i < kM * p.rows; i += blockDim.x) {
      const int m = i % kM, r = i / kM;
      if (begin + m >= p.n) continue;
      const int64_t at = int64_t(r) * p.n + begin + m;
      const float y = p.residual ? p.residual[at] : 0;
      float total = 0;
      for (int w = 0; w < warps; ++w) total += to[(w * kM + m) * (kN + 1) + r];
      p.y[at] = y + total;
    }
  };
  while (here.row < p.n) {
    use(held[0]);
    if (here.row < p.n) use(held[1]);
  }
}

[[noreturn]] void wrong(const SkinnyParams& p) {
  std::fprintf(
      stderr,
      "skinny_linear: [%d, %d] x %d rows: expected k a multiple of 256, up to 8 rows of x (200 KiB as "
      "16-bit numbers) or %d of x16\n",
      p.n,
      p.k,
      p.rows,
      kSkinnyRows);
  std::abort();
}

template <bool kFp8, Input kInput>
void start(const SkinnyParams& p, Stream& stream) {
  using C = Config<kFp8>;
  const auto kernel = skinny_kernel<kFp8, kInput>;
  int warps = kMostWarps;
  while (p.k / C::kChunk % warps != 0) --warps;
  const int64_t bytes = C::shared_bytes(p.k, p.rows, warps);
  if (bytes > kMostShared) wrong(p);
  static const int processors = [kernel] {
    int device = 0, n = 0;
    SE_CUDA(cudaGetDevice(&device));
    SE_CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
    SE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared));
    return n;
  }();
  int blocks = 0;
  SE_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, warps * 32, size_t(bytes)));
  const int tiles = (p.n + C::kM - 1) / C::kM, most = processors * (blocks < 1 ? 1 : blocks);
  launch_clusters(kernel,
                  dim3(unsigned(tiles < most ? tiles : most)),
                  1,
                  warps * 32,
                  bytes,
                  (blocks < 1 ? 1 : blocks) * (bytes + 1024),
                  stream.get(),
                  p,
                  p.k / C::kChunk / warps);
}

template <bool kFp8>
void choose(const SkinnyParams& p, Stream& stream) {
  if (skinny_short_takes(p)) return skinny_short(p, stream);
  if (p.x && p.rows == 1) return start<kFp8, kOneRow>(p, stream);
  if (p.x && p.rows <= 8 && p.n >= kLong) return start<kFp8, kPairs>(p, stream);
  if (p.x && p.rows <= 8) return start<kFp8, kFloats>(p, stream);
  if (!p.x16 || !skinny_wide(p, stream)) wrong(p);
}

}  // namespace

void skinny_linear(const SkinnyParams& p, Stream& stream) {
  if (p.rows < 1 || p.rows > kSkinnyRows || p.n < 1 || p.k < 256 || p.k % 256 != 0) wrong(p);
  p.w_scale ? choose<true>(p, stream) : choose<false>(p, stream);
}

}  // namespace se::cuda
