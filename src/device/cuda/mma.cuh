// device/cuda/mma.cuh -- tensor-core tiles and number conversions shared by the kernels. Device code only.
//
// m16n8k16 layout, lane = 4 g + c: A registers 0..3 hold (row g, k 2c..), (row g + 8, k 2c..), (row g, k 2c +
// 8..), (row g + 8, k 2c + 8..); B registers 0, 1 hold (k 2c.., column g), (k 2c + 8.., column g); the result
// holds (row g, columns 2c, 2c + 1), then row g + 8. Since k is summed over, any permutation of k that A and
// B share is free: loads of 16 contiguous bytes per lane use that.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace se::cuda {

inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

__device__ __forceinline__ float power2(float x) {  // to 2 ulp; -inf gives 0
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ uint32_t pack(float lo, float hi, __nv_bfloat16) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return reinterpret_cast<const uint32_t&>(v);
}
__device__ __forceinline__ uint32_t pack(float lo, float hi, __half) {
  const __half2 v = __floats2half2_rn(lo, hi);
  return reinterpret_cast<const uint32_t&>(v);
}
__device__ __forceinline__ float2 unpack(uint32_t v, __nv_bfloat16) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v));
}
__device__ __forceinline__ float2 unpack(uint32_t v, __half) {
  return __half22float2(reinterpret_cast<const __half2&>(v));
}
// Two f32 as a 16-bit pair and the pair of what rounding lost.
template <typename T>
__device__ __forceinline__ void pieces(float a, float b, uint32_t& high, uint32_t& rest) {
  high = pack(a, b, T());
  const float2 h = unpack(high, T());
  rest = pack(a - h.x, b - h.y, T());
}

// Four FP8 codes as two pairs of halves, exactly.
__device__ __forceinline__ void e4m3_to_half(uint32_t four, uint32_t& first, uint32_t& second) {
  asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.rn.f16x2.e4m3x2 %0, lo; cvt.rn.f16x2.e4m3x2 %1, hi; }"
      : "=r"(first), "=r"(second)
      : "r"(four));
}
__device__ __forceinline__ void e5m2_to_half(uint32_t four, uint32_t& first, uint32_t& second) {
  first = __byte_perm(four, 0, 0x1404), second = __byte_perm(four, 0, 0x3424);  // E5M2 is the top of a half
}

__device__ __forceinline__ void mma(
    float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <bool kTranspose>
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  if constexpr (kTranspose)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// 16 bytes from device to shared memory; zeros if not `there` (nothing is read then).
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool there) {
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
      : "memory");
}
__device__ __forceinline__ void copy4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_done() {  // all that this thread has started
  asm volatile("cp.async.wait_all;" ::: "memory");
}
// 16 bytes that nobody writes while this kernel runs (weights, past K/V), not kept in L1.
__device__ __forceinline__ uint4 stream16(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
__device__ __forceinline__ void prefetch(const void* at) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}

}  // namespace se::cuda
