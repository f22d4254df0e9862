#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/cuda/hopper.cuh"
#include "device/cuda/launch.h"
#include "kbench/kbench.h"

namespace se::kbench {
namespace {

__host__ __device__ inline float uniform(uint64_t seed, uint64_t i) {  // splitmix64, [-1, 1)
  uint64_t z = (seed + i) * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return float(int32_t(z >> 32)) * (1.f / 2147483648.f);
}

__global__ void fill(uint16_t* to, int64_t n, bool bf16, float scale, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n;
       i += int64_t(gridDim.x) * blockDim.x) {
    const float x = uniform(seed, uint64_t(i)) * scale;
    to[i] = bf16 ? __bfloat16_as_ushort(__float2bfloat16(x)) : __half_as_ushort(__float2half(x));
  }
}

__global__ void fill_codes(uint8_t* to, int64_t n, bool any, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n / 8;
       i += int64_t(gridDim.x) * blockDim.x) {
    uint64_t z = (seed + uint64_t(i)) * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    // FP8: exponents that vary, no NaN; all of them below 8 in E4M3, whose random codes would reach 448.
    reinterpret_cast<uint64_t*>(to)[i] = any ? z : z & 0xcfcfcfcfcfcfcfcfull;
  }
}

__global__ void fill_f32(float* to, int64_t n, float least, float most, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n;
       i += int64_t(gridDim.x) * blockDim.x)
    to[i] = least + (most - least) * (uniform(seed, uint64_t(i)) * 0.5f + 0.5f);
}

__global__ void channel_0(char* arena,
                          int64_t pages_heads,
                          int items,
                          int row_bytes,
                          int heads,
                          int64_t page_bytes,
                          const float* value) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x, at = i / items;
  if (at >= pages_heads) return;
  char* row = arena + at / heads * page_bytes + (at % heads * items + i % items) * row_bytes;
  *reinterpret_cast<__nv_bfloat16*>(row) = __float2bfloat16(value[at]);
}

struct LateWrites {
  LateWrite all[16];
  int n;
};
__global__ void late_writer(const __grid_constant__ LateWrites w) {
  cuda::pdl_wait();
  cuda::pdl_release();
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < 50000);
  for (int i = 0; i < w.n; ++i)
    for (int64_t at = threadIdx.x; at < w.all[i].bytes; at += blockDim.x)
      static_cast<char*>(w.all[i].to)[at] = static_cast<const char*>(w.all[i].from)[at];
}

// Pieces of 4 KiB at offsets from a table, a warp each, all loads of a piece under way at once.
__global__ void gather(const char* from, const int64_t* offsets, int64_t pieces, uint32_t* sink) {
  uint32_t all = 0;
  const int lane = threadIdx.x % 32;
  const int64_t warps = int64_t(gridDim.x) * blockDim.x / 32;
  int64_t i = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) / 32;
  int64_t next = i < pieces ? offsets[i] : 0;
  for (; i < pieces; i += warps) {
    const uint4* at = reinterpret_cast<const uint4*>(from + next) + lane;
    if (i + warps < pieces) next = offsets[i + warps];
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = at[j * 32];
#pragma unroll
    for (int j = 0; j < 8; ++j) all ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (all == 0x12345678u) *sink = all;
}

__global__ void read(const uint4* from, int64_t n, uint32_t* sink) {
  uint32_t all = 0;
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  for (; i + 3 * step < n; i += 4 * step) {
    const uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
    all ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < n; i += step) all ^= from[i].x;
  if (all == 0x12345678u) *sink = all;  // keeps the reads
}

// The same with the copy engine, 16 KiB a copy: the fewest instructions that a read can take.
constexpr int kChunk = 16384, kChunks = 12;

__global__ __launch_bounds__(32) void read_copies(const char* from, int chunks) {
  extern __shared__ __align__(128) char ring[];
  __shared__ uint64_t full[kChunks];
  if (threadIdx.x > 0) return;
  for (int i = 0; i < kChunks; ++i) cuda::barrier_init(cuda::shared_address(&full[i]), 1);
  cuda::barrier_init_done();
  const int mine = (chunks - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x);
  for (int i = 0; i < mine + kChunks; ++i) {
    const int stage = i % kChunks;
    const uint32_t done = cuda::shared_address(&full[stage]);
    if (i >= kChunks && i - kChunks < mine) cuda::barrier_wait(done, (i / kChunks - 1) & 1);
    if (i >= mine) continue;
    cuda::barrier_arrive_expecting(done, kChunk);
    cuda::copy_bytes(cuda::shared_address(ring) + stage * kChunk,
                     from + int64_t(blockIdx.x + i * gridDim.x) * kChunk,
                     done,
                     kChunk);
  }
}

}  // namespace

void read_all_by_copies(const void* from, int64_t bytes, cuda::Stream& stream) {
  static const bool ready = [] {
    SE_CUDA(cudaFuncSetAttribute(read_copies, cudaFuncAttributeMaxDynamicSharedMemorySize, kChunk * kChunks));
    return true;
  }();
  (void)ready;
  read_copies<<<132, 32, kChunk * kChunks, stream.get()>>>(static_cast<const char*>(from),
                                                           int(bytes / kChunk));
  SE_CUDA(cudaGetLastError());
}

void fill_random(void* to, int64_t elements, bool bf16, float scale, uint64_t seed, cuda::Stream& stream) {
  fill<<<2048, 256, 0, stream.get()>>>(static_cast<uint16_t*>(to), elements, bf16, scale, seed);
  SE_CUDA(cudaGetLastError());
}

void read_all(const void* from, int64_t bytes, void* sink, cuda::Stream& stream) {
  read<<<1056, 256, 0, stream.get()>>>(
      static_cast<const uint4*>(from), bytes / 16, static_cast<uint32_t*>(sink));
  SE_CUDA(cudaGetLastError());
}

void fill_bytes(void* to, int64_t bytes, bool any, uint64_t seed, cuda::Stream& stream) {
  fill_codes<<<2048, 256, 0, stream.get()>>>(static_cast<uint8_t*>(to), bytes, any, seed);
  SE_CUDA(cudaGetLastError());
}

void fill_floats(void* to, int64_t n, float least, float most, uint64_t seed, cuda::Stream& stream) {
  fill_f32<<<1024, 256, 0, stream.get()>>>(static_cast<float*>(to), n, least, most, seed);
  SE_CUDA(cudaGetLastError());
}

void write_late(const std::vector<LateWrite>& writes, cuda::Stream& stream) {
  LateWrites w;
  w.n = int(writes.size());
  for (int i = 0; i < w.n; ++i) w.all[i] = writes[size_t(i)];
  cuda::launch(late_writer, dim3(1), 1024, 0, stream.get(), w);
}

void gather_all(
    const void* from, const int64_t* offsets, int64_t pieces, int blocks, void* sink, cuda::Stream& stream) {
  gather<<<unsigned(blocks), 256, 0, stream.get()>>>(
      static_cast<const char*>(from), offsets, pieces, static_cast<uint32_t*>(sink));
  SE_CUDA(cudaGetLastError());
}

float random_float(uint64_t seed, uint64_t i) { return uniform(seed, i); }

void set_channel_0(void* arena,
                   int64_t pages_heads,
                   int items,
                   int row_bytes,
                   int heads,
                   int64_t page_bytes,
                   const float* value,
                   cuda::Stream& stream) {
  const int64_t n = pages_heads * items;
  channel_0<<<unsigned((n + 255) / 256), 256, 0, stream.get()>>>(
      static_cast<char*>(arena), pages_heads, items, row_bytes, heads, page_bytes, value);
  SE_CUDA(cudaGetLastError());
}

}  // namespace se::kbench
