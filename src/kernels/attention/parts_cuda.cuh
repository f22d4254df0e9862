// kernels/attention/parts_cuda.cuh -- how blocks leave the sums of a split to one another (adr/0018). Device
// code only.
//
// Each number of a part is its own signal: between launches all are kNotYet, bits that no arithmetic leaves
// (its NaNs are 0x7fffffff); whoever merges a part waits for each number and puts kNotYet back. No fence, no
// counter.
#pragma once
#include <cstdint>

namespace se::cuda {

inline constexpr uint32_t kNotYet = 0xffffffffu;

__device__ __forceinline__ uint32_t sure(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits == kNotYet ? 0x7fffffffu : bits;
}
__device__ __forceinline__ void put_part(void* to, const float4& x) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to),
               "r"(sure(x.x)),
               "r"(sure(x.y)),
               "r"(sure(x.z)),
               "r"(sure(x.w))
               : "memory");
}
__device__ __forceinline__ void put_part(void* to, const float2& x) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(sure(x.x)), "r"(sure(x.y))
               : "memory");
}

}  // namespace se::cuda
