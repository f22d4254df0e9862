#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kbench/reference.h"
#include "kbench/softmax.cuh"

namespace se::kbench {
namespace {

using cuda::DecodeParams;
using cuda::DecodeType;

__device__ double e4m3(uint8_t code) {
  const int e = code >> 3 & 15, m = code & 7;
  const double x = e ? (1 + m / 8.0) * exp2(double(e - 7)) : m / 8.0 * exp2(-6.0);
  return code & 0x80 ? -x : x;
}
__device__ double e5m2(uint8_t code) {
  const int e = code >> 2 & 31, m = code & 3;
  const double x = e ? (1 + m / 4.0) * exp2(double(e - 15)) : m / 4.0 * exp2(-14.0);
  return code & 0x80 ? -x : x;
}
__device__ double bf16(const char* p) { return __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(p)); }
__device__ double f16(const char* p) { return __half2float(*reinterpret_cast<const __half*>(p)); }

__device__ double element(
    const DecodeParams& p, DecodeType type, int dim, int64_t slot, int head, bool value, int d) {
  const int64_t page = (slot >> p.page_shift) * p.page_stride, item = slot & ((1 << p.page_shift) - 1);
  const char* plane = (value ? p.v : p.k) + page + head * p.head_stride;
  if (type == DecodeType::kBF16) return bf16(plane + item * p.item_stride + d * 2);
  if (type == DecodeType::kF16) return f16(plane + item * p.item_stride + d * 2);
  const char* scales = (value ? p.v_scale : p.k_scale) + page + head * p.scale_head;
  if (type != DecodeType::kKivi4) {
    const uint8_t code = uint8_t(plane[item * p.item_stride + d]);
    const double scale = *reinterpret_cast<const float*>(scales + item * p.scale_item);
    return (type == DecodeType::kE4M3 ? e4m3(code) : e5m2(code)) * scale;
  }
  const int64_t group = item / 32, t = item % 32;
  const uint8_t byte = uint8_t(plane[group * p.item_stride + t * dim / 2 + d / 2]);
  const int code = d % 2 ? byte >> 4 : byte & 15;
  const char* low = (value ? p.v_min : p.k_min) + page + head * p.scale_head + group * p.scale_item;
  const int64_t at = value ? t * (dim / 32) + d / 32 : d;
  return bf16(low + at * 2) + code * f16(scales + group * p.scale_item + at * 2);
}

__global__ void attend(DecodeParams p,
                       DecodeType type,
                       int dim,
                       Window window,
                       const int2* which,
                       int64_t places,
                       double* scratch,
                       double* out,
                       double* lse,
                       double* size) {
  __shared__ double shared[256];
  const int q_heads = p.kv_heads * p.group, q_head = blockIdx.x % q_heads, place = blockIdx.x / q_heads;
  const int row = which ? which[place].x : p.ids[place];
  const int head = q_head / p.group, token = which ? which[place].y : p.q_start[row], tid = threadIdx.x;
  const auto given = [&](double x) {
    return which ? double(__bfloat162float(__float2bfloat16(float(x)))) : x;
  };
  const int r = p.row_heads == 1 ? row : row * p.kv_heads + head;
  const int64_t past = int64_t(p.counts[r]) << p.unit_shift, offset = p.offset ? p.offset[r] : 0;
  const int from = p.new_k ? p.kv_from[row] : token + 1;
  const int64_t all = past + (token + 1 - from);
  // Places and present tokens below these are not seen.
  const int64_t past_low = window.tokens ? window.pos[token] - window.tokens + 1 - window.first[r] : 0;
  const int64_t now_low = window.tokens ? token - window.tokens + 1 : from;
  double* s = scratch + blockIdx.x * places;
  const float* q = p.q + token * p.q_token + q_head * p.q_head;
  const auto slot_of = [&](int64_t i) -> int64_t {  // -1: not there, or not seen
    if (i >= past) return from + i - past >= now_low ? 0 : -1;
    if (i < past_low) return -1;
    const int64_t run = p.runs[p.start[r] + (i >> p.unit_shift)], in = i & ((1 << p.unit_shift) - 1);
    return in < (run & 0xffff) ? (run >> 16) + offset + in : -1;
  };
  double top = -INFINITY;
  for (int64_t i = tid; i < all; i += blockDim.x) {
    const int64_t slot = slot_of(i);
    double dot = 0;
    for (int d = 0; d < dim && slot >= 0; ++d)
      dot +=
          given(q[d]) * (i < past ? given(element(p, type, dim, slot, head, false, d))
                                  : given(p.new_k[(from + i - past) * p.new_token + head * p.new_head + d]));
    s[i] = slot >= 0 ? dot * double(p.scale) : -INFINITY;
    top = fmax(top, s[i]);
  }
  const auto [most, total] = softmax(s, all, top, shared);
  const int parts = blockDim.x / dim, d = tid % dim;
  double acc = 0, terms = 0;
  for (int64_t i = tid / dim; i < all; i += parts) {
    const int64_t slot = slot_of(i);
    if (slot < 0) continue;
    const double x =
        s[i] * (i < past ? given(element(p, type, dim, slot, head, true, d))
                         : given(p.new_v[(from + i - past) * p.new_token + head * p.new_head + d]));
    acc += x, terms += fabs(x);
  }
  const auto sum = [&](double x) {
    __syncthreads();
    shared[tid] = x;
    __syncthreads();
    for (int i = 1; i < parts && tid < dim; ++i) x += shared[tid + i * dim];
    return x;
  };
  acc = sum(acc), terms = sum(terms);
  if (tid < dim) {
    const int64_t at = int64_t(which ? place : token) * q_heads + q_head;
    out[at * dim + d] = total > 0 ? acc / total : 0;
    if (size) size[at * dim + d] = total > 0 ? terms / total : 0;
    if (d == 0) lse[at] = total > 0 ? most + log(total) : -INFINITY;
  }
}

__global__ void linear(
    const void* w, const float* scale, int n, int k, const float* x, int rows, double* out, double* size) {
  const int64_t o = blockIdx.x * int64_t(blockDim.y) + threadIdx.y;
  if (o >= n) return;
  for (int r = 0; r < rows; ++r) {
    double sum = 0, terms = 0;
    for (int i = threadIdx.x; i < k; i += 32) {
      const double weight = scale ? e4m3(static_cast<const uint8_t*>(w)[o * k + i]) *
                                        double(scale[o / 128 * (k / 128) + i / 128])
                                  : bf16(static_cast<const char*>(w) + (o * k + i) * 2);
      const double term = weight * double(x[int64_t(r) * k + i]);
      sum += term, terms += fabs(term);
    }
    for (int d = 16; d > 0; d /= 2)
      sum += __shfl_xor_sync(~0u, sum, d), terms += __shfl_xor_sync(~0u, terms, d);
    if (threadIdx.x == 0) out[int64_t(r) * n + o] = sum, size[int64_t(r) * n + o] = terms;
  }
}

}  // namespace

void reference_attention(const DecodeParams& p,
                         DecodeType type,
                         int dim,
                         int listed,
                         int64_t places,
                         double* scratch,
                         double* out,
                         double* lse,
                         cuda::Stream& stream) {
  attend<<<unsigned(listed * p.kv_heads * p.group), 256, 0, stream.get()>>>(
      p, type, dim, {}, nullptr, places, scratch, out, lse, nullptr);
  SE_CUDA(cudaGetLastError());
}

void reference_prefill(const DecodeParams& p,
                       DecodeType type,
                       const Window& window,
                       const int2* which,
                       int tokens,
                       int64_t places,
                       double* scratch,
                       double* out,
                       double* lse,
                       double* size,
                       cuda::Stream& stream) {
  attend<<<unsigned(tokens * p.kv_heads * p.group), 256, 0, stream.get()>>>(
      p, type, 128, window, which, places, scratch, out, lse, size);
  SE_CUDA(cudaGetLastError());
}

void reference_linear(const void* w,
                      const float* scale,
                      int n,
                      int k,
                      const float* x,
                      int rows,
                      double* out,
                      double* size,
                      cuda::Stream& stream) {
  linear<<<unsigned((n + 7) / 8), dim3(32, 8), 0, stream.get()>>>(w, scale, n, k, x, rows, out, size);
  SE_CUDA(cudaGetLastError());
}

}  // namespace se::kbench
