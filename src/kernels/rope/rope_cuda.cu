// One warp a head of a token.
#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/rope/rope_cuda.h"

namespace se::cuda {
namespace {

constexpr int kWarps = 4;

// As cos_sin of rope.cc: reduction and series in double, so angles of any position keep their accuracy.
__device__ void cos_sin(float angle, float& cos, float& sin) {
  const double a = angle, shifted = a * 0x1.45f306dc9c883p-1 + 0x1.8p52, n = shifted - 0x1.8p52;
  const double r = ((a - n * 0x1.921fb4p+0) - n * 0x1.4442dp-24) - n * 0x1.8469898cc517p-48, z = r * r;
  const double s =
      r + r * z * (-1. / 6 + z * (1. / 120 + z * (-1. / 5040 + z * (1. / 362880 + z * (-1. / 39916800)))));
  const double c =
      1 + z * (-1. / 2 + z * (1. / 24 + z * (-1. / 720 +
                                             z * (1. / 40320 + z * (-1. / 3628800 + z * (1. / 479001600))))));
  const int quarter = __double2loint(shifted) & 3;
  const double x = quarter & 1 ? s : c, y = quarter & 1 ? c : s;
  cos = float(quarter == 1 || quarter == 2 ? -x : x), sin = float(quarter >= 2 ? -y : y);
}

template <int DIM>
__global__ __launch_bounds__(kWarps * 32) void rope_kernel(const __grid_constant__ RopeWriteParams p) {
  constexpr int kPairs = DIM / 64;  // of a lane
  // Ahead of its own wait, for this kernel is short: the next one's blocks start as the last of the kernel
  // before leave, and what they read ahead of their wait is on its way when this one is done. It must be
  // older than the kernel before.
  pdl_release();
  const int lane = threadIdx.x % 32, heads = p.q_heads + 2 * p.kv_heads;
  const int64_t work = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int token = int(work / heads), head = int(work % heads);
  const bool is_q = head < p.q_heads, is_v = head >= p.q_heads + p.kv_heads;
  int at[kPairs][2];
  bool turns[kPairs];
  float w[kPairs][2], frequency[kPairs];
  const float* norm = is_v ? nullptr : is_q ? p.q_norm : p.k_norm;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = lane * kPairs + j;
    turns[j] = i < p.pairs && !is_v;
    const bool split = i < p.pairs && !p.interleaved;
    at[j][0] = split ? i : 2 * i, at[j][1] = split ? i + p.pairs : 2 * i + 1;
    frequency[j] = turns[j] ? __ldg(p.rope + i) : 0;
    w[j][0] = norm ? __ldg(norm + at[j][0]) : 1, w[j][1] = norm ? __ldg(norm + at[j][1]) : 1;
  }
  pdl_wait();
  if (token >= p.tokens) return;
  float* x = p.qkv + (int64_t(token) * heads + head) * DIM;
  float v[kPairs][2], sum = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    v[j][0] = x[at[j][0]], v[j][1] = x[at[j][1]];
    sum += v[j][0] * v[j][0] + v[j][1] * v[j][1];
  }
  const float position = is_v ? 0 : float(p.pos[token]);
  const int64_t slot = is_q || p.type == KvType::kNone ? -1 : p.slots[token];
  if (norm) {
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    const float f = 1 / sqrtf(sum / DIM + p.eps);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) v[j][0] *= f * w[j][0], v[j][1] *= f * w[j][1];
  }
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    if (!turns[j]) continue;
    float cos, sin;
    cos_sin(position * frequency[j], cos, sin);
    const float a = v[j][0] * cos - v[j][1] * sin;
    v[j][1] = v[j][1] * cos + v[j][0] * sin, v[j][0] = a;
  }
  if (slot >= 0 && p.type != KvType::kNone) {
    const int64_t where = slot + p.slot_offset, page = (where >> p.page_shift) * p.page_stride;
    const int64_t item = where & ((int64_t{1} << p.page_shift) - 1);
    const int kv_head = is_v ? head - p.q_heads - p.kv_heads : head - p.q_heads;
    char* to = (is_v ? p.v : p.k) + page + item * p.item_stride + kv_head * p.head_stride;
    if (p.type == KvType::kE4M3) {
      float most = 0;
#pragma unroll
      for (int j = 0; j < kPairs; ++j) most = fmaxf(most, fmaxf(fabsf(v[j][0]), fabsf(v[j][1])));
      for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
      const float scale = fmaxf(__fdiv_rn(most, 448.f), 1e-30f);
#pragma unroll
      for (int j = 0; j < kPairs; ++j)
#pragma unroll
        for (int y = 0; y < 2; ++y) {
          const __nv_fp8_e4m3 code(__fdiv_rn(v[j][y], scale));
          reinterpret_cast<__nv_fp8_e4m3*>(to)[at[j][y]] = code;
          v[j][y] = float(code) * scale;
        }
      if (lane == 0)
        *reinterpret_cast<float*>((is_v ? p.v_scale : p.k_scale) + page + item * p.scale_item +
                                  kv_head * p.scale_head) = scale;
    } else {
#pragma unroll
      for (int j = 0; j < kPairs; ++j)
#pragma unroll
        for (int y = 0; y < 2; ++y) {
          if (p.type == KvType::kBF16)
            reinterpret_cast<__nv_bfloat16*>(to)[at[j][y]] = __float2bfloat16(v[j][y]);
          else
            reinterpret_cast<__half*>(to)[at[j][y]] = __float2half(v[j][y]);
        }
    }
  }
#pragma unroll
  for (int j = 0; j < kPairs; ++j) x[at[j][0]] = v[j][0], x[at[j][1]] = v[j][1];
}

}  // namespace

void qk_norm_rope_write(const RopeWriteParams& p, Stream& stream) {
  if (p.tokens < 1) return;
  if ((p.dim != 64 && p.dim != 128 && p.dim != 256) || p.pairs * 2 > p.dim) {
    std::fprintf(stderr,
                 "qk_norm_rope_write: %d channels, %d of them rotate: expected 64, 128 or 256\n",
                 p.dim,
                 2 * p.pairs);
    std::abort();
  }
  const int64_t work = int64_t(p.tokens) * (p.q_heads + 2 * p.kv_heads);
  const dim3 grid(unsigned((work + kWarps - 1) / kWarps));
  void (*const kernel)(RopeWriteParams) = p.dim == 64    ? rope_kernel<64>
                                          : p.dim == 128 ? rope_kernel<128>
                                                         : rope_kernel<256>;
  launch(kernel, grid, kWarps * 32, 0, stream.get(), p);
}

}  // namespace se::cuda
