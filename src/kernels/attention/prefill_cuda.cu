// Dense prefill attention, and the present's K/V in BF16.
#include "kernels/attention/prefill_kernel_cuda.cuh"

namespace se::cuda {
namespace {

__global__ void round_present(const __grid_constant__ PrefillParams p) {
  pdl_wait();
  pdl_release();
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.taken = 0;
  if (!p.a.new_k) return;
  const int64_t n = int64_t(p.a.kv_heads) * p.tokens * (prefill::kDim / 8);
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n;
       i += int64_t(gridDim.x) * blockDim.x) {
    const int c = int(i % (prefill::kDim / 8)) * 8;
    const int64_t rest = i / (prefill::kDim / 8), head = rest / p.tokens, token = rest - head * p.tokens;
    const int64_t from = token * p.a.new_token + head * p.a.new_head + c;
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
      const float* x = (plane ? p.a.new_v : p.a.new_k) + from;
      const float4 a = *reinterpret_cast<const float4*>(x), b = *reinterpret_cast<const float4*>(x + 4);
      *reinterpret_cast<uint4*>((plane ? p.now_v : p.now_k) + rest * prefill::kDim + c) = {
          pack(a.x, a.y, __nv_bfloat16()),
          pack(a.z, a.w, __nv_bfloat16()),
          pack(b.x, b.y, __nv_bfloat16()),
          pack(b.z, b.w, __nv_bfloat16())};
    }
  }
}

}  // namespace

void prefill_round(const PrefillParams& p, Stream& stream) {
  const int64_t n = int64_t(p.a.kv_heads) * p.tokens * (prefill::kDim / 8);
  const int64_t blocks = (n + 255) / 256;
  launch(round_present,
         dim3(unsigned(p.a.new_k && blocks < 1056 ? blocks
                       : p.a.new_k                ? 1056
                                                  : 1)),
         256,
         0,
         stream.get(),
         p);
}

void prefill_dense(const PrefillParams& p, const PrefillMaps& maps, int grid, Stream& stream) {
  prefill::start<false>(p, maps, grid, stream);
}

}  // namespace se::cuda
