// A warpgroup takes 64 rows of w at a time: a warp's lanes read 16 bytes of 16 rows, two chunks ahead, and
// what they hold is the A operand of wgmma as it lies; all of x lies in shared memory as B, its k permuted
// alike: per 16 bytes of w one conversion and no load of activations into registers.
#include "device/cuda/hopper.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/linear/skinny_long_cuda.h"

namespace se::cuda {
namespace {

constexpr int kGroups = 2, kThreads = kGroups * 128, kTile = 64, kLong = 65536, kMostRows = 48;
constexpr int64_t kMostShared = 226 << 10;

int columns(int rows) { return rows <= 16 ? 16 : kMostRows; }
int64_t shared_bytes(const SkinnyParams& p) { return int64_t(p.k) * columns(p.rows) * 2; }

template <bool kFp8, int kN>
__global__ __launch_bounds__(kThreads, 1) void long_kernel(const __grid_constant__ SkinnyParams p) {
  constexpr int kElements = kFp8 ? 16 : 8, kChunk = 16 * kElements, kBlocks = kChunk / 128;
  extern __shared__ __align__(1024) char shared[];  // [k / 64][kN][128 bytes], permuted as hopper.cuh says
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, c = lane % 4;
  const int begin = int(blockIdx.x * kGroups + threadIdx.x / 128) * kTile,
            stride = int(gridDim.x) * kGroups * kTile;
  const int64_t row_bytes = int64_t(p.k) * (kFp8 ? 1 : 2);
  const int chunks = p.k / kChunk;
  struct Chunk {
    uint4 w[2][4];
    float factor[kBlocks];
  } held[2];
  struct Cursor {
    int row, chunk;
  };
  Cursor ahead{begin, 0}, here = ahead;
  const auto advance = [&](Cursor& x) {
    if (++x.chunk == chunks) x.chunk = 0, x.row += stride;
  };
  const auto load = [&](Chunk& x) {
    if (ahead.row >= p.n) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = min(ahead.row + warp * 16 + h * 8 + g, p.n - 1);
      const char* from = static_cast<const char*>(p.w) + row * row_bytes + ahead.chunk * 256 + c * 16;
#pragma unroll
      for (int j = 0; j < 4; ++j) x.w[h][j] = stream16(from + j * 64);
    }
    if constexpr (kFp8)
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
        x.factor[b] = __ldg(p.w_scale + int64_t(ahead.row / 128) * (p.k / 128) + ahead.chunk * kBlocks + b);
    advance(ahead);
  };
  load(held[0]), load(held[1]);
  pdl_wait();
  pdl_release();
  // Eight numbers of a row at a time: pairs go to where lane c of the A operand has the same k.
  for (int octet = threadIdx.x; octet < p.k / 8; octet += kThreads) {
    const int in = octet * 8 % (4 * kElements), to = in / kElements,
              step = octet * 8 % 64 / (4 * kElements) * (kElements / 4) + in % kElements / 4;
#pragma unroll 4
    for (int row = 0; row < kN; ++row) {
      uint4 v{};
      if (row < p.rows) v = *(reinterpret_cast<const uint4*>(p.x16) + (int64_t(row) * p.k / 8 + octet));
      char* at = shared + octet / 8 * (kN * 128) + row * 128 + to * 4;
      const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<uint32_t*>(at + ((2 * step + i) ^ row % 8) * 16) = pairs[i];
    }
  }
  fence_shared_writes();
  __syncthreads();

  const uint64_t x_at = operand(shared_address(shared), 1024);
  float all[kN / 2] = {};
  const auto use = [&](Chunk& x) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint32_t a[8][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // of 16 of k
        const uint4 &top = x.w[0][kFp8 ? 2 * b + i / 4 : i / 2], &low = x.w[1][kFp8 ? 2 * b + i / 4 : i / 2];
        const uint32_t t[4] = {top.x, top.y, top.z, top.w}, l[4] = {low.x, low.y, low.z, low.w};
        if constexpr (kFp8) {
          e4m3_to_half(t[i % 4], a[i][0], a[i][2]), e4m3_to_half(l[i % 4], a[i][1], a[i][3]);
        } else {
          a[i][0] = t[i % 2 * 2], a[i][2] = t[i % 2 * 2 + 1], a[i][1] = l[i % 2 * 2],
          a[i][3] = l[i % 2 * 2 + 1];
        }
      }
      float d[kN / 2] = {};
      const int first = (here.chunk * kBlocks + b) * 8;
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < 8; ++i)
        wgmma_rows<kN, kFp8>(d, a[i], x_at + uint64_t((first + i) / 4 * (kN * 8) + i % 4 * 2), i > 0);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_take(d);
#pragma unroll
      for (int i = 0; i < 8; ++i) wgmma_keep(a[i]);
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) all[i] += kFp8 ? x.factor[b] * d[i] : d[i];
    }
    load(x);
    if (here.chunk + 1 == chunks) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) {
        const int o = here.row + warp * 16 + i / 2 % 2 * 8 + g, r = i / 4 * 8 + 2 * c + i % 2;
        const int64_t at = int64_t(r) * p.n + o;
        if (o < p.n && r < p.rows) p.y[at] = (p.residual ? p.residual[at] : 0) + all[i];
        all[i] = 0;
      }
    }
    advance(here);
  };
  while (here.row < p.n) {
    use(held[0]);
    if (here.row < p.n) use(held[1]);
  }
}

template <bool kFp8, int kN>
void start(const SkinnyParams& p, Stream& stream) {
  const auto kernel = long_kernel<kFp8, kN>;
  static const int processors = [kernel] {
    int device = 0, n = 0;
    SE_CUDA(cudaGetDevice(&device));
    SE_CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
    SE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(kMostShared)));
    return n;
  }();
  const int64_t bytes = shared_bytes(p);
  launch_clusters(kernel, dim3(unsigned(processors)), 1, kThreads, bytes, bytes + 1024, stream.get(), p);
}

}  // namespace

bool skinny_long_takes(const SkinnyParams& p) {
  return p.n >= kLong && p.rows > 8 && p.rows <= kMostRows && shared_bytes(p) <= kMostShared;
}

void skinny_long(const SkinnyParams& p, Stream& stream) {
  if (p.w_scale)
    columns(p.rows) == 16 ? start<true, 16>(p, stream) : start<true, kMostRows>(p, stream);
  else
    columns(p.rows) == 16 ? start<false, 16>(p, stream) : start<false, kMostRows>(p, stream);
}

}  // namespace se::cuda
