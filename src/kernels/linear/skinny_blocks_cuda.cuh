// kernels/linear/skinny_blocks_cuda.cuh -- what the kernels over GGUF's blocks share: quantised activations,
// and bytes at even addresses. Private to the folder; device code only.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/linear/skinny_blocks_cuda.h"

namespace se::cuda::blocks {

inline constexpr int kMostShared = 226 << 10;
inline constexpr float kTiny = 1e-30f;  // of linear_routines.h

__device__ __forceinline__ float half_at(const char* p) {
  return __half2float(*reinterpret_cast<const __half*>(p));
}
__device__ __forceinline__ uint32_t word(const char* p) { return *reinterpret_cast<const uint32_t*>(p); }
// Four bytes at an even address, and kN of them one after another.
template <int kN>
__device__ __forceinline__ void even_words(uint32_t (&to)[kN], const char* row, int at) {
  const char* p = row + (at & ~3);
  uint32_t raw[kN + 1];
#pragma unroll
  for (int i = 0; i <= kN; ++i) raw[i] = word(p + 4 * i);
#pragma unroll
  for (int i = 0; i < kN; ++i) to[i] = __funnelshift_r(raw[i], raw[i + 1], (at & 2) * 8);
}

// Activations in shared memory, for kT rows, zeros past the last.
template <int kT>
struct Input {
  int8_t* q;         // [kT][pitch]
  float *d, *d_sum;  // [blocks][kT]; d_sum: Q4_K
  int* less;         // [blocks][2][kT], Q6_K: -32 times the sum of 16 codes
  int pitch;
  static int bytes(int blocks, int pitch) { return kT * (pitch + blocks * 16) + 16; }
};

// As quantise of linear_ref.cc: the same codes, factors and sums. Eight lanes a block of 32. All threads;
// ends with a barrier.
template <int kT>
__device__ __forceinline__ void quantise(const SkinnyBlocksParams& p, const Input<kT>& in) {
  constexpr int kAtOnce = 4;
  const int lane = threadIdx.x % 32, blocks = p.k / 32, all = blocks * kT;
  const int first = threadIdx.x / 8, step = blockDim.x / 8;  // of blocks, row after row
  for (int base = first - lane / 8; base < all; base += kAtOnce * step) {
    float4 v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = base + lane / 8 + i * step;
      v[i] = at < blocks * p.rows ? *reinterpret_cast<const float4*>(p.x + int64_t(at) * 32 + lane % 8 * 4)
                                  : float4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = base + lane / 8 + i * step, t = at / blocks, block = at - t * blocks;
      const float x[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
      uint32_t bits = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) bits = max(bits, __float_as_uint(x[e]) & 0x7fffffffu);
#pragma unroll
      for (int d = 4; d > 0; d /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, d));
      const float most = __uint_as_float(bits);
      const bool tiny = most < kTiny;
      const float d = tiny ? 0 : __fdiv_rn(most, 127.f), inverse = tiny ? 0 : __fdiv_rn(127.f, most);
      uint32_t codes = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float scaled = __fmul_rn(x[e], inverse);
        codes |= (uint32_t(scaled == scaled ? __float2int_rn(scaled) : -128) & 0xff) << 8 * e;
      }
      int sum = __dp4a(int(codes), 0x01010101, 0);
      sum += __shfl_xor_sync(~0u, sum, 1), sum += __shfl_xor_sync(~0u, sum, 2);
      const int both = sum + __shfl_xor_sync(~0u, sum, 4);
      if (at >= all) continue;
      *reinterpret_cast<uint32_t*>(in.q + t * in.pitch + block * 32 + lane % 8 * 4) = codes;
      if (lane % 4 == 0) in.less[(block * 2 + lane / 4 % 2) * kT + t] = -32 * sum;
      if (lane % 8 == 0) in.d[block * kT + t] = d, in.d_sum[block * kT + t] = __fmul_rn(d, float(both));
    }
  }
  __syncthreads();
}

// Sums that begin as the bits of 1.5 x 2^23: the float less that is the sum (below 2^22), without a
// conversion.
inline constexpr int kMagic = 0x4b400000;
__device__ __forceinline__ float unmagic(int sum) { return __int_as_float(sum) - 12582912.f; }

// skinny_blocks' way for 5 to 8 rows and many rows of w; whether k is small enough for it.
bool many_rows_fits(const SkinnyBlocksParams& p);
void many_rows(const SkinnyBlocksParams& p, Stream& stream);

}  // namespace se::cuda::blocks
