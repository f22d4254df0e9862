// The past of a prefill step in BF16, row by row, from what is stored otherwise: once for all tiles of
// queries.
#include "device/cuda/stream.h"
#include "kernels/attention/prefill_tile_cuda.cuh"

namespace se::cuda {
namespace {

using namespace prefill;

constexpr int kThreads = 256, kLanes = kDim / 8;  // of a token, eight channels each

__device__ __forceinline__ uint4 rounded(const float (&x)[8]) {
  return {pack(x[0], x[1], __nv_bfloat16()),
          pack(x[2], x[3], __nv_bfloat16()),
          pack(x[4], x[5], __nv_bfloat16()),
          pack(x[6], x[7], __nv_bfloat16())};
}

// Formats: channels 8 c .. of a slot of one KV head, in f32, then in BF16.
struct At {
  int64_t page;
  int item;
  __device__ __forceinline__ At(const DecodeParams& p, int64_t slot)
      : page((slot >> p.page_shift) * p.page_stride), item(int(slot) & ((1 << p.page_shift) - 1)) {}
};

struct F16 {
  static __device__ __forceinline__ uint4
  read(const DecodeParams& p, int head, bool value, int64_t slot, int c) {
    const At at(p, slot);
    const char* from =
        (value ? p.v : p.k) + at.page + at.item * p.item_stride + head * p.head_stride + c * 16;
    const uint4 x = stream16(from);
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    float y[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 two = unpack(words[j], __half());
      y[2 * j] = two.x, y[2 * j + 1] = two.y;
    }
    return rounded(y);
  }
};

template <bool kE5M2>
struct Fp8 {
  static __device__ __forceinline__ uint4
  read(const DecodeParams& p, int head, bool value, int64_t slot, int c) {
    const At at(p, slot);
    const char* from = (value ? p.v : p.k) + at.page + at.item * p.item_stride + head * p.head_stride + c * 8;
    const uint2 codes = __ldg(reinterpret_cast<const uint2*>(from));
    const float scale = __ldg(reinterpret_cast<const float*>((value ? p.v_scale : p.k_scale) + at.page +
                                                             at.item * p.scale_item + head * p.scale_head));
    uint32_t half[4];
    kE5M2 ? e5m2_to_half(codes.x, half[0], half[1]) : e4m3_to_half(codes.x, half[0], half[1]);
    kE5M2 ? e5m2_to_half(codes.y, half[2], half[3]) : e4m3_to_half(codes.y, half[2], half[3]);
    float y[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 two = unpack(half[j], __half());
      y[2 * j] = two.x * scale, y[2 * j + 1] = two.y * scale;
    }
    return rounded(y);
  }
};

// Groups of 32 tokens: minimum and step of K per channel, of V per token and 32 channels.
struct Kivi4 {
  static __device__ __forceinline__ uint4
  read(const DecodeParams& p, int head, bool value, int64_t slot, int c) {
    const At at(p, slot);
    const int group = at.item / 32, token = at.item % 32;
    const uint32_t codes =
        __ldg(reinterpret_cast<const uint32_t*>((value ? p.v : p.k) + at.page + group * p.item_stride +
                                                head * p.head_stride + token * (kDim / 2) + c * 4));
    const int64_t meta = at.page + group * p.scale_item + head * p.scale_head;
    float step[8], low[8];
    if (value) {
      const int64_t of = meta + (token * (kDim / 32) + c / 4) * 2;
      step[0] = __half2float(*reinterpret_cast<const __half*>(p.v_scale + of));
      low[0] = __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(p.v_min + of));
#pragma unroll
      for (int j = 1; j < 8; ++j) step[j] = step[0], low[j] = low[0];
    } else {
      const uint4 s = __ldg(reinterpret_cast<const uint4*>(p.k_scale + meta + c * 16));
      const uint4 m = __ldg(reinterpret_cast<const uint4*>(p.k_min + meta + c * 16));
      const uint32_t steps[4] = {s.x, s.y, s.z, s.w}, minima[4] = {m.x, m.y, m.z, m.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 a = unpack(steps[j], __half()), b = unpack(minima[j], __nv_bfloat16());
        step[2 * j] = a.x, step[2 * j + 1] = a.y, low[2 * j] = b.x, low[2 * j + 1] = b.y;
      }
    }
    float y[8];
#pragma unroll
    for (int j = 0; j < 8; ++j)  // the code as 2^23 + n, less 2^23
      y[j] = fmaf(__uint_as_float(0x4b000000u | (codes >> 4 * j & 15)) - 8388608.0f, step[j], low[j]);
    return rounded(y);
  }
};

// A tile of one KV head of a listed row, keys and values; zeros where no token is.
template <typename Format>
__global__ __launch_bounds__(kThreads) void restore(const __grid_constant__ PrefillParams p) {
  __shared__ int64_t slots[kTile];
  pdl_wait();
  pdl_release();
  const int listed = blockIdx.z, thread = threadIdx.x;
  if (listed >= *p.a.n) return;
  Work w;
  w.row = p.a.ids[listed], w.head = blockIdx.y;
  const int end = p.a.q_start[w.row + 1];
  w.token = p.a.q_start[w.row], w.from = p.a.new_k ? p.a.kv_from[w.row] : end;
  if (w.token == end) return;
  find_past(p, w);
  const int tile = blockIdx.x, id = w.shift / kTile + tile;
  if (id >= w.past_tiles || id < lowest_tile(p, w, w.token)) return;
  const int64_t of = int64_t(listed * p.a.kv_heads + w.head) * p.past_rows + tile * kTile;
  if (thread < kTile) {
    const int64_t slot = slot_of(p.a, w, id * kTile + thread);
    slots[thread] = slot;
    const uint32_t there = __ballot_sync(~0u, slot >= 0);
    if (thread % 32 == 0) p.past_there[(of + thread) / 32] = there;
  }
  __syncthreads();
  const bool value = thread >= kThreads / 2;
  const int c = thread % kLanes, row = thread % (kThreads / 2) / kLanes;
  __nv_bfloat16* to = (value ? p.past_v : p.past_k) + (of + row) * kDim + c * 8;
  constexpr int kRows = kThreads / 2 / kLanes;
#pragma unroll 8
  for (int i = 0; i < kTile / kRows; ++i) {
    const int64_t slot = slots[i * kRows + row];
    *reinterpret_cast<uint4*>(to + i * kRows * kDim) =
        slot < 0 ? uint4{0, 0, 0, 0} : Format::read(p.a, w.head, value, slot, c);
  }
}

}  // namespace

void prefill_restore(const PrefillParams& p, DecodeType type, Stream& stream) {
  const auto f = type == DecodeType::kF16    ? restore<F16>
                 : type == DecodeType::kE4M3 ? restore<Fp8<false>>
                 : type == DecodeType::kE5M2 ? restore<Fp8<true>>
                                             : restore<Kivi4>;
  launch(f,
         dim3(unsigned(p.past_rows / kTile), unsigned(p.a.kv_heads), unsigned(p.a.cap)),
         kThreads,
         0,
         stream.get(),
         p);
}

}  // namespace se::cuda
