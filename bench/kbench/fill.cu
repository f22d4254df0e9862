#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

}  // namespace

void fill_random(void* to, int64_t elements, bool bf16, float scale, uint64_t seed, cuda::Stream& stream) {
  fill<<<2048, 256, 0, stream.get()>>>(static_cast<uint16_t*>(to), elements, bf16, scale, seed);
  SE_CUDA(cudaGetLastError());
}

void read_all(const void* from, int64_t bytes, void* sink, cuda::Stream& stream) {
  read<<<1056, 256, 0, stream.get()>>>(
      static_cast<const uint4*>(from), bytes / 16, static_cast<uint32_t*>(sink));
  SE_CUDA(cudaGetLastError());
}

float random_float(uint64_t seed, uint64_t i) { return uniform(seed, i); }

}  // namespace se::kbench
