// A block takes tiles of 128 activation rows x 256 channels. One warp brings 128 of k at a time (copy engine,
// four stages), two warpgroups take 128 channels each: 64 rows by 128 of k on the tensor cores, then times
// the factors into f32 sums in registers, while the other warpgroup has the tensor cores. Of the last tile of
// a group, 64 rows are left out where they are not there. Ladder: docs/performance.md.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "device/cuda/hopper.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "device/cuda/tensor_map.h"
#include "kernels/linear/block_gemm_cuda.h"

namespace se::cuda {
namespace {

constexpr int kRows = 128, kHalf = 64, kWide = 128, kK = 128, kStages = 4, kThreads = 384, kSpan = 16;
constexpr int kBox = 128 * kK;       // bytes of 128 rows of 128 codes
constexpr int kFactors = kRows + 4;  // brought for a tile: the copy engine starts at multiples of 16 bytes

enum class Out { kBf16, kF32, kProduct };

// A tile: rows `row` .. row + rows - 1 of group `group`, the channels of tile `channel`.
struct Tile {
  int group, row, rows, channel;
};
struct Shared {  // at a multiple of 1,024 bytes
  char x[kStages][kBox], w[kStages][2][kBox];
  char out[2][16384];                       // of a warpgroup; products use half and keep maxima in the other
  alignas(128) float factor[kStages][160];  // of the rows, from the multiple of 4 before the first
  Tile tile[kStages];                       // of what lies there; no rows: no more tiles
  uint64_t full[kStages], empty[kStages];
};
static_assert(sizeof(Shared) <= 227 << 10);

// The tiles of this block, every gridDim.x-th. Within a group: spans of 16 tiles of rows by all channels,
// rows fastest, so that what runs at the same time shares weights and activations.
struct Tiles {
  int next = blockIdx.x, group = 0, before = 0;
  __device__ __forceinline__ bool take(const BlockGemmParams& p, int channels, Tile& t) {
    for (; group < p.groups; ++group) {
      const int first = p.first ? p.first[group] : 0, end = p.first ? p.first[group + 1] : p.rows;
      const int row_tiles = (end - first + kRows - 1) / kRows;
      if (next < before + row_tiles * channels) {
        const int local = next - before, span = local / (kSpan * channels), in = local % (kSpan * channels);
        const int wide = min(kSpan, row_tiles - span * kSpan);
        t = {group, first + (span * kSpan + in % wide) * kRows, 0, in / wide};
        t.rows = min(kRows, end - t.row);
        next += gridDim.x;
        return true;
      }
      before += row_tiles * channels;
    }
    return false;
  }
};

struct Stage {
  int at = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++at == kStages) at = 0, phase ^= 1;
  }
};

// Where the 64 channels of piece i (0 to 3; two a warpgroup) of a tile begin: gate and up by turns for
// products.
template <Out kOut>
__device__ __forceinline__ int channel_of(const BlockGemmParams& p, int tile, int i) {
  return kOut == Out::kProduct ? i % 2 * (p.n / 2) + tile * 128 + i / 2 * 64 : tile * 256 + i * 64;
}

struct Maps {
  CUtensorMap w, x, factor;
};

template <Out kOut>
__device__ __forceinline__ void produce(const BlockGemmParams& p, const Maps& maps, Shared& s, int channels) {
  const int lane = threadIdx.x % 32, blocks = p.k / kK;
  Stage stage;
  Tiles tiles;
  Tile t;
  while (tiles.take(p, channels, t)) {
    const int channel = channel_of<kOut>(p, t.channel, lane % 4);
    for (int b = 0; b < blocks; ++b) {
      const uint32_t full = shared_address(&s.full[stage.at]);
      barrier_wait(shared_address(&s.empty[stage.at]), stage.phase ^ 1);
      if (lane == 0) {
        s.tile[stage.at] = t;
        barrier_arrive_expecting(full, 3 * kBox + kFactors * 4);
        copy_box(shared_address(s.factor[stage.at]), maps.factor, full, t.row & ~3, b, 0, 0, 0);
        copy_box(shared_address(s.x[stage.at]), maps.x, full, b * kK, t.row, 0, 0, 0);
      }
      __syncwarp();
      if (lane < 4)
        copy_box(shared_address(s.w[stage.at][0] + lane * (kBox / 2)),
                 maps.w,
                 full,
                 b * kK,
                 channel,
                 t.group,
                 0,
                 0);
      stage.next();
    }
  }
  barrier_wait(shared_address(&s.empty[stage.at]), stage.phase ^ 1);
  if (lane == 0) {
    s.tile[stage.at].rows = 0;
    barrier_arrive(shared_address(&s.full[stage.at]));
  }
}

// A warpgroup's sums: [64 rows][as wgmma_128 gives them: 128 channels].
using Sums = float[2][64];

// Where this thread is: warpgroup (known to be the warp's, so that addresses are too), warp of it, lane = 4 g
// + c.
struct Me {
  int group = __shfl_sync(~0u, int(threadIdx.x / 128) - 1, 0), thread = threadIdx.x % 128, warp = thread / 32,
      lane = thread % 32;
  int g = lane / 4, c = lane % 4;
};

// Results leave by the warp that has them, 16 rows of each half, through 4 KiB of its own (`out`).
__device__ __forceinline__ void put_bf16(const BlockGemmParams& p,
                                         const Tile& t,
                                         const Sums& sums,
                                         char* out) {
  const Me me;
  const int piece_out = me.lane % 16,
            channel = channel_of<Out::kBf16>(p, t.channel, 2 * me.group) + piece_out * 8;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int first = h * kHalf + me.warp * 16;
    if (first >= t.rows) break;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 16; j += 2) {  // rows of 256 bytes
      const int row = me.lane % 16, piece = j + me.lane / 16;
      const float(&d)[64] = sums[h];
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       shared_address(out + row * 256 + (piece ^ (row & 7)) * 16)),
                   "r"(pack(d[4 * j], d[4 * j + 1], __nv_bfloat16())),
                   "r"(pack(d[4 * j + 2], d[4 * j + 3], __nv_bfloat16())),
                   "r"(pack(d[4 * j + 4], d[4 * j + 5], __nv_bfloat16())),
                   "r"(pack(d[4 * j + 6], d[4 * j + 7], __nv_bfloat16()))
                   : "memory");
    }
    __syncwarp();
    __nv_bfloat16* to =
        static_cast<__nv_bfloat16*>(p.y16) + int64_t(t.row + first + me.lane / 16) * p.n + channel;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = 2 * i + me.lane / 16;
      if (first + row < t.rows && channel < p.n)
        *reinterpret_cast<uint4*>(to + int64_t(2 * i) * p.n) =
            *reinterpret_cast<const uint4*>(out + row * 256 + (piece_out ^ (row & 7)) * 16);
    }
  }
}

__device__ __forceinline__ void put_f32(const BlockGemmParams& p,
                                        const Tile& t,
                                        const Sums& sums,
                                        char* out) {
  const Me me;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int first = h * kHalf + me.warp * 16;
    if (first >= t.rows) break;
#pragma unroll
    for (int part = 0; part < 2; ++part) {  // 64 channels at a time
      const int piece_out = me.lane % 16,
                channel = channel_of<Out::kF32>(p, t.channel, 2 * me.group + part) + piece_out * 4;
      const int64_t at = int64_t(t.row + first + me.lane / 16) * p.n + channel;
      const auto there = [&](int i) { return first + 2 * i + me.lane / 16 < t.rows && channel < p.n; };
      float4 v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i)
        v[i] = p.residual && there(i)
                   ? *reinterpret_cast<const float4*>(p.residual + at + int64_t(2 * i) * p.n)
                   : float4{0, 0, 0, 0};
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {  // rows of 256 bytes
          const int row = me.g + 8 * i, from = part * 32 + 4 * j + 2 * i;
          *reinterpret_cast<float2*>(out + row * 256 + ((2 * j + me.c / 2) ^ (row & 7)) * 16 +
                                     me.c % 2 * 8) = {sums[h][from], sums[h][from + 1]};
        }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = 2 * i + me.lane / 16;
        const float4 x = *reinterpret_cast<const float4*>(out + row * 256 + (piece_out ^ (row & 7)) * 16);
        if (there(i))
          *reinterpret_cast<float4*>(p.y + at + int64_t(2 * i) * p.n) = {
              x.x + v[i].x, x.y + v[i].y, x.z + v[i].z, x.w + v[i].w};
      }
    }
  }
}

constexpr float kMostCode = 448, kLeastFactor = 0x1p-126f;
// Codes of a and b.
__device__ __forceinline__ uint16_t codes_of(float a, float b) {
  uint16_t two;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(two) : "f"(a), "f"(b));
  return two;
}
__device__ __forceinline__ float rounded(float x) { return __bfloat162float(__float2bfloat16(x)); }

// most [2 warpgroups][rows]: of this tile; the next one has another.
__device__ __forceinline__ void put_product(
    const BlockGemmParams& p, const Tile& t, Sums& sums, char* out, float (*most)[kRows]) {
  const Me me;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (h * kHalf >= t.rows) break;
    float top[2] = {0, 0};
#pragma unroll
    for (int x = 0; x < 32; ++x) {
      const float gate = sums[h][x];
      sums[h][x] = rounded(__fdividef(gate, 1 + __expf(-gate)) * sums[h][32 + x]);
      top[x / 2 % 2] = fmaxf(top[x / 2 % 2], fabsf(sums[h][x]));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      for (int d = 1; d < 4; d *= 2) top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], d));
      if (me.c == 0) most[me.group][h * kHalf + me.warp * 16 + me.g + 8 * i] = top[i];
    }
  }
  named_sync(1, 256);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int first = h * kHalf + me.warp * 16;
    if (first >= t.rows) break;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = me.g + 8 * i;
      const float factor = fmaxf(fmaxf(most[0][first + row], most[1][first + row]) / kMostCode, kLeastFactor);
      const float inverse = 1 / factor;
      if (me.group == 0 && me.c == 0 && first + row < t.rows)
        p.product_scale[t.channel * block_pitch(p.rows) + t.row + first + row] = factor;
#pragma unroll
      for (int j = 0; j < 8; ++j)  // rows of 64 bytes, in pieces of 8
        *reinterpret_cast<uint16_t*>(out + row * 64 + (j ^ (row & 7)) * 8 + 2 * me.c) =
            codes_of(sums[h][4 * j + 2 * i] * inverse, sums[h][4 * j + 2 * i + 1] * inverse);
    }
    __syncwarp();
    const int piece = me.lane % 8;
    uint8_t* to =
        p.product + int64_t(t.row + first) * (p.n / 2) + t.channel * 128 + me.group * 64 + piece * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 4 * i + me.lane / 8;
      if (first + row < t.rows)
        *reinterpret_cast<uint2*>(to + int64_t(row) * (p.n / 2)) =
            *reinterpret_cast<const uint2*>(out + row * 64 + (piece ^ (row & 7)) * 8);
    }
  }
}

template <Out kOut>
__device__ __forceinline__ void consume(const BlockGemmParams& p, Shared& s) {
  const Me me;
  const int blocks = p.k / kK, scale_rows = (p.n + 127) / 128;
  char* const out = s.out[me.group] + me.warp * (kOut == Out::kProduct ? 1024 : 4096);
  float(*most)[kRows] = reinterpret_cast<float(*)[kRows]>(s.out[0] + 8192);
  int parity = 0;
  Stage stage;
  Sums sums;
  float now[64];
  // Lane l: the factors of the weights of this warpgroup's two pieces, block 32 i + l of k.
  float of_w[2] = {0, 0};
  const auto load_w = [&](const Tile& t, int b) {
#pragma unroll
    for (int i = 0; i < (kOut == Out::kProduct ? 2 : 1); ++i) {
      const int at = min(channel_of<kOut>(p, t.channel, 2 * me.group + i) / 128, scale_rows - 1);
      const float* from = p.w_scale + (int64_t(t.group) * scale_rows + at) * blocks;
      of_w[i] = b + me.lane < blocks ? __ldg(from + b + me.lane) : 0;
    }
  };
  const auto look = [&] {  // at the tile that comes next
    barrier_wait(shared_address(&s.full[stage.at]), stage.phase);
    Tile t{};
    if (me.lane == 0) t = s.tile[stage.at];  // the thread that reads is the one that gives back
    t = {__shfl_sync(~0u, t.group, 0),
         __shfl_sync(~0u, t.row, 0),
         __shfl_sync(~0u, t.rows, 0),
         __shfl_sync(~0u, t.channel, 0)};
    if (t.rows > 0) load_w(t, 0);
    return t;
  };
  if (me.group == 1) named_arrive(2, 256);  // turns begin with warpgroup 0: barrier 2 is its, 3 the other's
  for (Tile t = look(); t.rows > 0;) {
#pragma unroll
    for (int i = 0; i < 64; ++i) sums[0][i] = sums[1][i] = 0;
    for (int b = 0; b < blocks; ++b) {
      if (b > 0) barrier_wait(shared_address(&s.full[stage.at]), stage.phase);
      const uint64_t w = operand(shared_address(s.w[stage.at][me.group]), 1024);
      const float* factor = s.factor[stage.at] + (t.row & 3) + me.warp * 16 + me.g;
      float f_w[2];
      if (b > 0 && b % 32 == 0) load_w(t, b);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (h == 1 && t.rows <= kHalf) break;
        const uint64_t x = operand(shared_address(s.x[stage.at] + h * (kBox / 2)), 1024);
        named_sync(2 + me.group, 256);  // this warpgroup's turn
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < kK / 32; ++i) wgmma_128_e4m3(now, x + 2 * i, w + 2 * i, i > 0);
        wgmma_commit();
        named_arrive(3 - me.group, 256);
        if (h == 0)
#pragma unroll
          for (int i = 0; i < 2; ++i) f_w[i] = __shfl_sync(~0u, of_w[i], b % 32);
        const float a = factor[h * kHalf], c = factor[h * kHalf + 8];
        const float f[2][2] = {{a * f_w[0], c * f_w[0]}, {a * f_w[1], c * f_w[1]}};
        wgmma_wait<0>();
        wgmma_take(now);
#pragma unroll
        for (int i = 0; i < 64; ++i) sums[h][i] += now[i] * f[kOut == Out::kProduct ? i / 32 : 0][i / 2 % 2];
      }
      __syncwarp();
      if (me.lane == 0) barrier_arrive(shared_address(&s.empty[stage.at]));
      stage.next();
    }
    const Tile next = look();  // its factors come while results leave
    if constexpr (kOut == Out::kBf16) put_bf16(p, t, sums, out);
    if constexpr (kOut == Out::kF32) put_f32(p, t, sums, out);
    if constexpr (kOut == Out::kProduct) put_product(p, t, sums, out, most + 2 * parity), parity ^= 1;
    t = next;
  }
}

template <Out kOut>
__global__ __launch_bounds__(kThreads, 1) void block_gemm_kernel(const __grid_constant__ BlockGemmParams p,
                                                                 const __grid_constant__ Maps maps,
                                                                 int channels) {
  extern __shared__ __align__(1024) char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  if (threadIdx.x == 0) {
    if (shared_address(raw) % 1024 != 0) __trap();
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&s.full[i]), 1);
      barrier_init(shared_address(&s.empty[i]), 8);
    }
    barrier_init_done();
  }
  __syncthreads();
  pdl_wait();
  pdl_release();
  if (threadIdx.x < 128) {
    registers_down<40>();
    if (threadIdx.x < 32) produce<kOut>(p, maps, s, channels);
  } else {
    registers_up<232>();
    consume<kOut>(p, s);
  }
}

// A block a row, 16 lanes a 128 of k.
__global__ __launch_bounds__(256) void quantise_kernel(const __grid_constant__ BlockQuantiseParams p) {
  __shared__ float sums[8];
  const int row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  pdl_wait();
  pdl_release();
  const float* x = p.x + int64_t(row) * p.k;
  float f = 1;
  if (p.norm) {
    float sum = 0;
    for (int at = threadIdx.x * 8; at < p.k; at += blockDim.x * 8) {
      const float4 a = *reinterpret_cast<const float4*>(x + at),
                   b = *reinterpret_cast<const float4*>(x + at + 4);
      sum +=
          (a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w) + (b.x * b.x + b.y * b.y + b.z * b.z + b.w * b.w);
    }
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 8; ++i) sum += sums[i];
    f = rsqrtf(sum / float(p.k) + p.eps);
  }
  const int rounds = (p.k + int(blockDim.x) * 8 - 1) / (int(blockDim.x) * 8);
  for (int i = 0; i < rounds; ++i) {
    const int at = (i * int(blockDim.x) + int(threadIdx.x)) * 8;
    float v[8] = {};
    if (at < p.k) {
      const float4 a = *reinterpret_cast<const float4*>(x + at),
                   b = *reinterpret_cast<const float4*>(x + at + 4);
      v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    }
    float most = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (p.norm && at < p.k) v[j] *= f * __ldg(p.norm + at + j);
      most = fmaxf(most, fabsf(v[j]));
    }
    for (int d = 8; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    if (at >= p.k) continue;
    const float factor = fmaxf(most / kMostCode, kLeastFactor), inverse = 1 / factor;
    uint16_t codes[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) codes[j] = codes_of(v[2 * j] * inverse, v[2 * j + 1] * inverse);
    for (int j = 0; j < p.copies; ++j) {
      const int64_t to = p.place ? p.place[int64_t(row) * p.copies + j] : row;
      *reinterpret_cast<uint2*>(p.codes + to * p.k + at) = {codes[0] | unsigned(codes[1]) << 16,
                                                            codes[2] | unsigned(codes[3]) << 16};
      if (lane % 16 == 0) p.scale[at / 128 * block_pitch(p.out_rows) + to] = factor;
    }
  }
}

template <Out kOut>
void start(const BlockGemmParams& p, Stream& stream) {
  static const int processors = [] {
    int device = 0, n = 0;
    SE_CUDA(cudaGetDevice(&device));
    SE_CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
    SE_CUDA(cudaFuncSetAttribute(
        block_gemm_kernel<kOut>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(sizeof(Shared))));
    return n;
  }();
  const int64_t k = p.k, n = p.n, groups = p.groups, rows = p.rows;
  Maps maps;
  maps.w =
      tensor_map(p.w, 1, {k, n, groups, 1, 1}, {k, n * k, n * k * groups, n * k * groups}, {kK, 64, 1, 1, 1});
  maps.x = tensor_map(p.x, 1, {k, rows, 1, 1, 1}, {k, k * rows, k * rows, k * rows}, {kK, kRows, 1, 1, 1});
  maps.factor = rows_map(p.x_scale, rows, k / kK, block_pitch(rows) * 4, kFactors);
  const int channels = (p.n + 2 * kWide - 1) / (2 * kWide);
  const int64_t tiles = ((rows + kRows - 1) / kRows + (groups > 1 ? std::min(groups, rows) : 0)) * channels;
  launch(block_gemm_kernel<kOut>,
         dim3(unsigned(std::min<int64_t>(tiles, processors))),
         kThreads,
         int(sizeof(Shared)),
         stream.get(),
         p,
         maps,
         channels);
}

}  // namespace

void block_gemm(const BlockGemmParams& p, Stream& stream) {
  const int outputs = (p.y16 != nullptr) + (p.y != nullptr) + (p.product != nullptr);
  if (p.rows < 1 || p.n < 8 || p.k < kK || p.k % kK != 0 || p.n % (p.product ? 256 : 8) != 0 ||
      outputs != 1 || p.groups < 1 || (p.groups > 1 && !p.first)) {
    std::fprintf(
        stderr,
        "block_gemm: %d groups of [%d, %d] x %d rows, %d outputs: expected k a multiple of 128, n of 8 (of "
        "256 for products), one output, and where the groups begin\n",
        p.groups,
        p.n,
        p.k,
        p.rows,
        outputs);
    std::abort();
  }
  if (p.product) return start<Out::kProduct>(p, stream);
  p.y ? start<Out::kF32>(p, stream) : start<Out::kBf16>(p, stream);
}

void block_quantise(const BlockQuantiseParams& p, Stream& stream) {
  if (p.rows < 1 || p.k < 128 || p.k % 128 != 0) {
    std::fprintf(stderr, "block_quantise: %d rows of %d: expected rows of a multiple of 128\n", p.rows, p.k);
    std::abort();
  }
  launch(quantise_kernel, dim3(unsigned(p.rows)), 256, 0, stream.get(), p);
}

}  // namespace se::cuda
