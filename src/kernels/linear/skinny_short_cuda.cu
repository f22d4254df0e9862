// All that a block reads of w is on its way to shared memory ahead of the wait for the kernel before, and a
// block takes less than half of a processor: the next kernel's weights come while this one runs. The two
// blocks of a cluster halve k, so that each rounds half of the activations only; what a warp finds for 16
// rows and 256 of k goes to the block that finishes those rows, which adds in the order of k.
#include <algorithm>

#include "device/cuda/hopper.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "device/cuda/tensor_map.h"
#include "kernels/linear/skinny_short_cuda.h"

namespace se::cuda {
namespace {

constexpr int kMostWarps = 10, kRows = 16, kChunk = 256, kItem = kRows * kChunk, kFew = 8, kHeld = 16;
constexpr int kHalfShared = 113 << 10;  // of one of two blocks on a processor

struct Plan {
  int clusters, tiles, most;                                 // tiles of 16 rows; of a cluster at most
  int chunks, warps;                                         // of k
  int pitch;                                                 // bytes of a row of activations
  int parts, x, squares, most_of, factors, barriers, bytes;  // where things lie in shared memory
};

__global__ __launch_bounds__(kMostWarps * 32, 2) void short_kernel(const __grid_constant__ SkinnyParams p,
                                                                   const __grid_constant__ CUtensorMap w,
                                                                   const __grid_constant__ Plan plan) {
  extern __shared__ __align__(1024) char shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int rank = blockIdx.x & 1, id = blockIdx.x >> 1;
  const int begin = plan.chunks * rank / 2, mine = plan.chunks * (rank + 1) / 2 - begin;
  const int tiles = (plan.tiles - id + plan.clusters - 1) / plan.clusters, items = tiles * mine;
  const auto tile_of = [&](int i) { return i * plan.clusters + id; };
  const uint32_t base = shared_address(shared), full = base + plan.barriers;
  const uint32_t came = full + plan.most * ((plan.chunks + 1) / 2) * 8,
                 squares_came = came + (plan.most + 1) / 2 * 8;
  if (lane == 0) {
    for (int i = warp; i < items; i += plan.warps) barrier_init(full + i * 8, 1);
    if (warp == 0) {
      for (int i = rank; i < tiles; i += 2) barrier_init(came + i / 2 * 8, 1);
      barrier_init(squares_came, 1);
    }
    barrier_init_done();
    for (int i = warp; i < items; i += plan.warps) {
      const int tile = i / mine, chunk = i - tile * mine;
      barrier_arrive_expecting(full + i * 8, kItem);
      copy_box(base + i * kItem, w, full + i * 8, 0, tile_of(tile) * kRows, (begin + chunk) * 2, 0, 0);
    }
    if (warp == 0) {
      for (int i = rank; i < tiles; i += 2) barrier_arrive_expecting(came + i / 2 * 8, plan.chunks * 512);
      if (p.norm) barrier_arrive_expecting(squares_came, 2 * p.rows * 4);
    }
  }
  __syncwarp();
  uint32_t* const most_of = reinterpret_cast<uint32_t*>(shared + plan.most_of);  // [8], of the rows
  float* const sums = reinterpret_cast<float*>(shared + plan.most_of + 32);      // [warps]
  if (threadIdx.x < kFew) most_of[threadIdx.x] = 0;
  const int first = begin * kChunk, segments = mine * 2;  // of k; of 128 of k
  // Where the rounded activations will be: the norm until then.
  float4* const norm = reinterpret_cast<float4*>(shared + plan.x);
  if (p.norm)
    for (int i = threadIdx.x; i < mine * (kChunk / 4); i += blockDim.x)
      copy16(shared_address(norm + i), p.norm + first + i * 4, true);
  float* const factors = reinterpret_cast<float*>(shared + plan.factors);  // [items][2]
  for (int i = threadIdx.x; i < items * 2; i += blockDim.x) {
    const int tile = i / 2 / mine, chunk = i / 2 - tile * mine;
    copy4(shared_address(factors + i),
          p.w_scale + int64_t(tile_of(tile) / 8) * (plan.chunks * 2) + (begin + chunk) * 2 + i % 2);
  }
  copies_done();
  cluster_arrive();
  cluster_wait();  // the other has begun; most_of is 0, norm and factors are there
  pdl_wait();
  pdl_release();

  // As many warps a row as there are; halves from 2^13 on down, whatever the norm.
  const int each = plan.warps / p.rows, row = warp / each;
  float4 held[kHeld];
  const bool there = row < p.rows;
  const int start = warp - row * each;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int s = start + j * each;
    if (!there || s >= segments) break;
    held[j] = *reinterpret_cast<const float4*>(p.x + int64_t(row) * p.k + first + s * 128 + lane * 4);
  }
  float y[4];  // of the tile that this warp finishes first
  const auto take_residual = [&](int tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int r = 2 * c + e % 2, o = tile_of(tile) * kRows + g + e / 2 * 8;
      y[e] = p.residual && tile < tiles && r < p.rows && o < p.n ? p.residual[int64_t(r) * p.n + o] : 0;
    }
  };
  take_residual(rank + 2 * warp);
  float sum = 0;
  uint32_t most = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int s = start + j * each;
    if (!there || s >= segments) break;
    float4& v = held[j];
    if (p.norm) {
      sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
      const float4 f = norm[s * 32 + lane];
      v = {v.x * f.x, v.y * f.y, v.z * f.z, v.w * f.w};
    }
    const float m = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    most = max(most, __float_as_uint(m));
  }
  most = __reduce_max_sync(~0u, most);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (lane == 0 && there) atomicMax(most_of + row, most), sums[warp] = sum;
  __syncthreads();
  const auto exponent = [&](int r) { return min(max(most_of[r] >> 23, 14u), 254u); };
  if (there) {
    const float scale = __uint_as_float((267 - exponent(row)) << 23);
    char* to = shared + plan.x + row * plan.pitch;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int s = start + j * each;
      if (s >= segments) break;
      const float4 v = held[j];
      // Of 32 of k, lane c of operand B has 4 c .. 4 c + 3 of the first 16, then of the others.
      const uint2 four = {pack(v.x * scale, v.y * scale, __half()), pack(v.z * scale, v.w * scale, __half())};
      *reinterpret_cast<uint2*>(to + s * 256 + lane / 8 * 64 + lane % 4 * 16 + lane / 4 % 2 * 8) = four;
    }
  }
  if (p.norm && threadIdx.x < p.rows) {
    float all = 0;
    for (int i = 0; i < each; ++i) all += sums[threadIdx.x * each + i];
    const uint32_t to = base + plan.squares + (rank * kFew + threadIdx.x) * 4;
    store_counted(in_block(to, 0), in_block(squares_came, 0), all);
    store_counted(in_block(to, 1), in_block(squares_came, 1), all);
  }
  __syncthreads();

  const uint32_t row_at = lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4);  // of ldmatrix, first pieces
  float inverse[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) inverse[e] = __uint_as_float((exponent(2 * c + e) - 13) << 23);
  for (int i = warp; i < items; i += plan.warps) {
    const int tile = i / mine, chunk = i - tile * mine;
    barrier_wait(full + i * 8, 0);
    float d[2][4] = {};
    const char* xs = shared + plan.x + g * plan.pitch + chunk * 512 + c * 16;
    uint32_t raw[2][4][4];
    uint4 b[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        load_matrices<false>(raw[half][s], base + i * kItem + half * (kItem / 2) + (row_at ^ s << 5));
        b[half][s] = *reinterpret_cast<const uint4*>(xs + half * 256 + s * 64);
      }
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t(&r)[4] = raw[half][s];
        uint32_t a[4];
        e4m3_to_half(r[0], a[0], a[2]), e4m3_to_half(r[1], a[1], a[3]);
        mma(d[half], a, b[half][s].x, b[half][s].y, __half());
        e4m3_to_half(r[2], a[0], a[2]), e4m3_to_half(r[3], a[1], a[3]);
        mma(d[half], a, b[half][s].z, b[half][s].w, __half());
      }
    const float2 f = *reinterpret_cast<const float2*>(factors + 2 * i);
    float part[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) part[e] = (f.x * d[0][e] + f.y * d[1][e]) * inverse[e % 2];
    const uint32_t to = base + plan.parts + (tile / 2 * plan.chunks + begin + chunk) * 512 + lane * 16;
    store_counted(in_block(to, tile & 1), in_block(came + tile / 2 * 8, tile & 1), part);
  }

  float norms[2] = {1, 1};
  if (p.norm) {
    barrier_wait(squares_came, 0);
    const float* squares = reinterpret_cast<const float*>(shared + plan.squares) + 2 * c;
#pragma unroll
    for (int e = 0; e < 2; ++e)
      norms[e] = rsqrtf((squares[e] + squares[kFew + e]) * __frcp_rn(float(p.k)) + p.eps);
  }
  for (int i = rank + 2 * warp; i < tiles; i += 2 * plan.warps) {
    const int o = tile_of(i) * kRows + g;
    if (i != rank + 2 * warp) take_residual(i);
    barrier_wait(came + i / 2 * 8, 0);
    const char* from = shared + plan.parts + i / 2 * plan.chunks * 512 + lane * 16;
    float4 all = {0, 0, 0, 0};
#pragma unroll 8
    for (int s = 0; s < plan.chunks; ++s) {
      const float4 x = *reinterpret_cast<const float4*>(from + s * 512);
      all.x += x.x, all.y += x.y, all.z += x.z, all.w += x.w;
    }
    y[0] += norms[0] * all.x, y[1] += norms[1] * all.y, y[2] += norms[0] * all.z, y[3] += norms[1] * all.w;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int r = 2 * c + e % 2, at = o + e / 2 * 8;
      if (r < p.rows && at < p.n) p.y[int64_t(r) * p.n + at] = y[e];
    }
  }
}

// Of n and k alone, as for the most rows.
Plan plan_for(const SkinnyParams& p, int processors) {
  Plan l{};
  l.tiles = (p.n + kRows - 1) / kRows, l.chunks = p.k / kChunk;
  l.clusters = std::min(processors / 2, l.tiles), l.most = (l.tiles + l.clusters - 1) / l.clusters;
  const int half = (l.chunks + 1) / 2, items = l.most * half;
  const int turns = (items + kMostWarps - 1) / kMostWarps;
  l.warps = std::max(kFew, (items + turns - 1) / turns), l.pitch = half * kChunk * 2 + 64;
  l.x = items * kItem, l.parts = l.x + kFew * l.pitch;
  l.squares = l.parts + (l.most + 1) / 2 * l.chunks * 512, l.most_of = l.squares + 2 * kFew * 4;
  l.factors = l.most_of + 32 + 64, l.barriers = l.factors + items * 8;
  l.bytes = l.barriers + (items + (l.most + 1) / 2 + 1) * 8;
  return l;
}

int processors() {
  static const int n = [] {
    int device = 0, count = 0;
    SE_CUDA(cudaGetDevice(&device));
    SE_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    SE_CUDA(cudaFuncSetAttribute(short_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kHalfShared));
    return count;
  }();
  return n;
}

}  // namespace

bool skinny_short_takes(const SkinnyParams& p) {
  const int half = (p.k / kChunk + 1) / 2;
  return p.w_scale && p.x && p.rows <= kFew && 2 * half <= kHeld && p.k >= 2 * kChunk &&
         plan_for(p, processors()).bytes <= kHalfShared;
}

void skinny_short(const SkinnyParams& p, Stream& stream) {
  const Plan plan = plan_for(p, processors());
  const CUtensorMap map =
      tensor_map(p.w, 1, {128, p.n, p.k / 128, 1, 1}, {p.k, 128, p.k, p.k}, {128, kRows, 2, 1, 1});
  launch_clusters(short_kernel,
                  dim3(unsigned(2 * plan.clusters)),
                  2,
                  plan.warps * 32,
                  plan.bytes,
                  kProcessorShared,
                  stream.get(),
                  p,
                  map,
                  plan);
}

}  // namespace se::cuda
