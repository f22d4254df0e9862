// A block takes 16 kTall rows of w at a time; its warps share out k in chunks. Weights go from memory
// straight into the A operand: a lane reads 16 contiguous bytes of a row, and the activations are read in the
// same permuted order of k. Two chunks are on their way ahead of the one in use, across tiles too.
#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/rows.cuh"
#include "device/cuda/stream.h"
#include "kernels/linear/skinny_cuda.h"

namespace se::cuda {
namespace {

constexpr int kMostWarps = 8, kPad = 8, kMostShared = 200 << 10;

// kWide: tiles of 8 activation rows. kRows: rows taken as f32 through shared memory (0: x16 as it lies).
template <bool kFp8, int kWide, int kTall, int kRows>
struct Config {
  static constexpr int kElements = kFp8 ? 16 : 8;             // of w in 16 bytes
  static constexpr int kLoads = 4 / kTall;                    // of a lane per row of w and chunk
  static constexpr int kChunk = 4 * kElements * kLoads;       // k of a chunk
  static constexpr int kPieces = !kFp8 && kRows > 0 ? 2 : 1;  // 16-bit pieces of an activation
};

template <bool kFp8, int kWide, int kTall, int kRows>
__global__ __launch_bounds__(kMostWarps * 32) void skinny_kernel(const __grid_constant__ SkinnyParams p) {
  using C = Config<kFp8, kWide, kTall, kRows>;
  using T = std::conditional_t<kFp8, __half, __nv_bfloat16>;
  constexpr int kM = 16 * kTall, kN = 8 * kWide;
  extern __shared__ __align__(16) char shared[];
  float* sums = reinterpret_cast<float*>(shared);  // [warps][kM][kN + 1]; first: take_rows
  const int warps = blockDim.x / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4,
            c = lane % 4;
  uint16_t* xs = reinterpret_cast<uint16_t*>(shared + warps * kM * (kN + 1) * 4);  // [pieces][rows][k + pad]
  const int64_t row_bytes = int64_t(p.k) * (kFp8 ? 1 : 2);
  const int tiles = (p.n + kM - 1) / kM, chunks = p.k / C::kChunk / warps;  // chunks of each warp
  const int mine = int(blockIdx.x) < tiles ? (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  const int steps = mine * chunks;
  const char* w = static_cast<const char*>(p.w);

  uint4 held[2][kTall][2][C::kLoads];
  float factor[2][kTall][2];
  const auto load = [&](auto which, int step) {
    constexpr int kWhich = decltype(which)::value;
    if (step >= steps) return;
    const int tile = blockIdx.x + step / chunks * gridDim.x, chunk = warp + warps * (step % chunks);
#pragma unroll
    for (int m = 0; m < kTall; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = min(tile * kM + m * 16 + h * 8 + g, p.n - 1);
        const char* from = w + row * row_bytes + chunk * C::kLoads * 64 + c * 16;
#pragma unroll
        for (int j = 0; j < C::kLoads; ++j) held[kWhich][m][h][j] = stream16(from + j * 64);
      }
      if constexpr (kFp8) {
        const float* f =
            p.w_scale + int64_t(tile * kM + m * 16) / 128 * (p.k / 128) + chunk * C::kChunk / 128;
        factor[kWhich][m][0] = __ldg(f), factor[kWhich][m][1] = C::kChunk > 128 ? __ldg(f + 1) : 0;
      }
    }
  };
  load(std::integral_constant<int, 0>(), 0);
  load(std::integral_constant<int, 1>(), 1);
  pdl_wait();
  pdl_release();

  const int64_t pitch = p.k + kPad;
  if constexpr (kRows > 0) {
    take_rows<kRows>(p.x, p.k, 0, p.rows, p.norm, p.eps, sums, [&](int r, int at, const float4& v) {
      uint2 high, rest;
      pieces<T>(v.x, v.y, high.x, rest.x), pieces<T>(v.z, v.w, high.y, rest.y);
      *reinterpret_cast<uint2*>(xs + r * pitch + at) = high;
      if (C::kPieces == 2) *reinterpret_cast<uint2*>(xs + (kRows + r) * pitch + at) = rest;
    });
    __syncthreads();
  }

  float all[kTall][kWide][4] = {};
  const auto use = [&](auto which, int step) {
    constexpr int kWhich = decltype(which)::value;
    const int chunk = warp + warps * (step % chunks);
    float sum[kTall][kWide][4] = {};
#pragma unroll
    for (int j = 0; j < C::kLoads; ++j) {
      const int k = chunk * C::kChunk + (j * 4 + c) * C::kElements;
#pragma unroll
      for (int n = 0; n < kWide; ++n) {
        uint32_t b[C::kPieces][C::kElements / 2];
#pragma unroll
        for (int x = 0; x < C::kPieces; ++x)
#pragma unroll
          for (int i = 0; i < C::kElements / 8; ++i) {
            const uint16_t* from = kRows > 0 ? xs + (x * kRows + g % (kRows > 0 ? kRows : 1)) * pitch + k
                                             : static_cast<const uint16_t*>(p.x16) +
                                                   int64_t(min(n * 8 + g, p.rows - 1)) * p.k + k;
            const uint4 v = *reinterpret_cast<const uint4*>(from + i * 8);
            b[x][4 * i] = v.x, b[x][4 * i + 1] = v.y, b[x][4 * i + 2] = v.z, b[x][4 * i + 3] = v.w;
          }
#pragma unroll
        for (int m = 0; m < kTall; ++m) {
          const uint4 &top = held[kWhich][m][0][j], &low = held[kWhich][m][1][j];
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
            for (int x = 0; x < C::kPieces; ++x) mma(sum[m][n], a, b[x][2 * s], b[x][2 * s + 1], T());
          }
        }
      }
      if constexpr (kFp8)
        if ((j + 1) * 64 % 128 == 0 || C::kLoads == 1) {  // the end of a block of 128
#pragma unroll
          for (int m = 0; m < kTall; ++m)
#pragma unroll
            for (int n = 0; n < kWide; ++n)
#pragma unroll
              for (int x = 0; x < 4; ++x)
                all[m][n][x] += factor[kWhich][m][j / 2] * sum[m][n][x], sum[m][n][x] = 0;
        }
    }
    if constexpr (!kFp8)
#pragma unroll
      for (int m = 0; m < kTall; ++m)
#pragma unroll
        for (int n = 0; n < kWide; ++n)
#pragma unroll
          for (int x = 0; x < 4; ++x) all[m][n][x] += sum[m][n][x];
    if ((step + 1) % chunks != 0) return;
    const int first = (blockIdx.x + step / chunks * gridDim.x) * kM;
#pragma unroll
    for (int m = 0; m < kTall; ++m)
#pragma unroll
      for (int n = 0; n < kWide; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          sums[(warp * kM + m * 16 + x / 2 * 8 + g) * (kN + 1) + n * 8 + 2 * c + x % 2] = all[m][n][x];
          all[m][n][x] = 0;
        }
    __syncthreads();
    for (int i = threadIdx.x; i < kM * p.rows; i += blockDim.x) {
      const int m = i % kM, r = i / kM;
      if (first + m >= p.n) continue;
      const int64_t at = int64_t(r) * p.n + first + m;
      float y = p.residual ? p.residual[at] : 0;
      float total = 0;
      for (int x = 0; x < warps; ++x) total += sums[(x * kM + m) * (kN + 1) + r];
      p.y[at] = y + total;
    }
    __syncthreads();
  };
  for (int step = 0; step < steps; step += 2) {
    use(std::integral_constant<int, 0>(), step);
    load(std::integral_constant<int, 0>(), step + 2);
    if (step + 1 >= steps) break;
    use(std::integral_constant<int, 1>(), step + 1);
    load(std::integral_constant<int, 1>(), step + 3);
  }
}

[[noreturn]] void wrong(const SkinnyParams& p) {
  std::fprintf(stderr,
               "skinny_linear: [%d, %d] x %d rows: expected k a multiple of 256, up to 8 rows of x "
               "(200 KiB as 16-bit numbers) or %d of x16\n",
               p.n,
               p.k,
               p.rows,
               kSkinnyRows);
  std::abort();
}

template <bool kFp8, int kWide, int kTall, int kRows>
void start(const SkinnyParams& p, Stream& stream) {
  using C = Config<kFp8, kWide, kTall, kRows>;
  const int chunks = p.k / C::kChunk;
  int warps = kMostWarps;
  while (chunks % warps != 0) --warps;
  constexpr int kM = 16 * kTall;
  const int bytes = warps * kM * (8 * kWide + 1) * 4 + C::kPieces * kRows * (p.k + kPad) * 2;
  if (bytes > kMostShared) wrong(p);
  static const int processors = [] {
    int device = 0, n = 0;
    SE_CUDA(cudaGetDevice(&device));
    SE_CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
    SE_CUDA(cudaFuncSetAttribute(
        skinny_kernel<kFp8, kWide, kTall, kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared));
    return n;
  }();
  int blocks = 0;
  SE_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, skinny_kernel<kFp8, kWide, kTall, kRows>, warps * 32, size_t(bytes)));
  const int tiles = (p.n + kM - 1) / kM, most = processors * (blocks < 1 ? 1 : blocks);
  launch(skinny_kernel<kFp8, kWide, kTall, kRows>,
         dim3(unsigned(tiles < most ? tiles : most)),
         warps * 32,
         bytes,
         stream.get(),
         p);
}

template <bool kFp8>
void choose(const SkinnyParams& p, Stream& stream) {
  if (p.x && p.rows == 1) return start<kFp8, 1, 1, 1>(p, stream);
  if (p.x && p.rows <= 4) return start<kFp8, 1, 1, 4>(p, stream);
  if (p.x && p.rows <= 8) return start<kFp8, 1, 1, 8>(p, stream);
  if (!p.x16) wrong(p);
  if (p.rows <= 8) return start<kFp8, 1, 1, 0>(p, stream);
  if (p.rows <= 16) return start<kFp8, 2, 1, 0>(p, stream);
  if (p.rows <= 32) return start<kFp8, 4, 2, 0>(p, stream);
  if (p.rows <= 48) return start<kFp8, 6, 2, 0>(p, stream);
  start<kFp8, 8, 2, 0>(p, stream);
}

}  // namespace

void skinny_linear(const SkinnyParams& p, Stream& stream) {
  if (p.rows < 1 || p.rows > kSkinnyRows || p.n < 1 || p.k < 256 || p.k % 256 != 0) wrong(p);
  p.w_scale ? choose<true>(p, stream) : choose<false>(p, stream);
}

}  // namespace se::cuda
