// Slow twins of FlashPrefill: means, energies, attention over chosen blocks.
#include <cuda_bf16.h>

#include "kbench/reference.h"
#include "kbench/softmax.cuh"

namespace se::kbench {
namespace {

using cuda::DecodeParams;
constexpr int kDim = 128, kBlock = 128;

__device__ double rounded(float x) { return double(__bfloat162float(__float2bfloat16(x))); }
__device__ double bf16(const void* p, int64_t i) {
  return double(__bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]));
}

// One row's sequence for one KV head: places of the past, padded to whole blocks, then the present.
struct Sequence {
  int r, head, past_blocks, from, end;
  __device__ Sequence(const DecodeParams& p, int row, int h) {
    head = h, r = p.row_heads == 1 ? row : row * p.kv_heads + h;
    past_blocks = ((p.counts[r] << p.unit_shift) + kBlock - 1) / kBlock;
    from = p.kv_from[row], end = p.q_start[row + 1];
  }
  __device__ int64_t slot(const DecodeParams& p, int i) const {
    const int e = i >> p.unit_shift, in = i & ((1 << p.unit_shift) - 1);
    if (e >= p.counts[r]) return -1;
    const int64_t run = p.runs[p.start[r] + e];
    return in < (run & 0xffff) ? (run >> 16) + in : -1;
  }
  // Whether there is a key at place i, seen by `token`.
  __device__ bool there(const DecodeParams& p, int i, int token) const {
    const int past = past_blocks * kBlock;
    return i < past ? slot(p, i) >= 0 : from + i - past <= token;
  }
  __device__ double at(const DecodeParams& p, int i, bool value, int d) const {
    const int past = past_blocks * kBlock;
    if (i >= past)
      return rounded((value ? p.new_v : p.new_k)[(from + i - past) * p.new_token + head * p.new_head + d]);
    const int64_t s = slot(p, i), item = s & ((1 << p.page_shift) - 1);
    return bf16((value ? p.v : p.k) + (s >> p.page_shift) * p.page_stride + head * p.head_stride +
                    item * p.item_stride,
                d);
  }
};

__global__ void means(DecodeParams p, int blocks, double* k, double* v, int* count) {
  const int b = blockIdx.x, head = blockIdx.y, row = blockIdx.z, d = threadIdx.x;
  const Sequence s(p, row, head);
  double sum_k = 0, sum_v = 0;
  int n = 0;
  for (int i = b * kBlock; i < (b + 1) * kBlock; ++i) {
    if (!s.there(p, i, s.end - 1)) continue;
    sum_k += s.at(p, i, false, d), sum_v += s.at(p, i, true, d), ++n;
  }
  const int64_t at = (int64_t(row) * p.kv_heads + head) * blocks + b;
  k[at * kDim + d] = n ? sum_k / n : 0, v[at * kDim + d] = n ? sum_v / n : 0;
  if (d == 0) count[at] = n;
}

__global__ void energies(DecodeParams p,
                         const TileOf* tiles,
                         int blocks,
                         const void* mean_k,
                         const int* count,
                         double* scratch,
                         double* energy) {
  __shared__ double tops[256];
  const TileOf t = tiles[blockIdx.x];
  const Sequence s(p, t.row, t.head);
  const int token = p.q_start[t.row], tokens = p.q_start[t.row + 1] - token;
  double* l = scratch + int64_t(blockIdx.x) * kBlock * blocks;
  double top = -INFINITY;
  for (int i = threadIdx.x; i < kBlock * t.active; i += blockDim.x) {
    const int b = i % t.active, packed = t.tile * kBlock + i / t.active, position = packed / p.group;
    const int64_t mean = (int64_t(t.row) * p.kv_heads + t.head) * blocks + b;
    const bool seen = position < tokens && count[mean] > 0 &&
                      (b < t.past_blocks || s.from + (b - t.past_blocks) * kBlock <= token + position);
    double dot = 0;
    if (seen) {
      const float* q =
          p.q + int64_t(token + position) * p.q_token + (t.head * p.group + packed % p.group) * p.q_head;
      for (int d = 0; d < kDim; ++d) dot += rounded(q[d]) * bf16(mean_k, mean * kDim + d);
    }
    l[i] = seen ? dot * double(p.scale) : -INFINITY;
    top = fmax(top, l[i]);
  }
  tops[threadIdx.x] = top;
  __syncthreads();
  for (int i = 0; i < int(blockDim.x); ++i) top = fmax(top, tops[i]);
  for (int b = threadIdx.x; b < t.active; b += blockDim.x) {
    double sum = 0;
    for (int r = 0; r < kBlock; ++r) sum += top == -INFINITY ? 0 : exp(l[r * t.active + b] - top);
    energy[int64_t(blockIdx.x) * blocks + b] = sum;
  }
}

__global__ void attend(DecodeParams p,
                       const int2* which,
                       const uint8_t* state,
                       int blocks,
                       const void* mean_k,
                       const void* mean_v,
                       const int* count,
                       int64_t places,
                       double* scratch,
                       double* out,
                       double* lse) {
  __shared__ double shared[256];
  const int q_heads = p.kv_heads * p.group, q_head = blockIdx.x % q_heads, place = blockIdx.x / q_heads;
  const int row = which[place].x, token = which[place].y, head = q_head / p.group, tid = threadIdx.x;
  const Sequence s(p, row, head);
  const int singles = s.past_blocks * kBlock + token + 1 - s.from, all = singles + blocks;
  const int64_t first_mean = (int64_t(row) * p.kv_heads + head) * blocks;
  const uint8_t* of = state + (int64_t(place) * p.kv_heads + head) * blocks;
  double* l = scratch + blockIdx.x * (places + blocks);
  const float* q = p.q + token * p.q_token + q_head * p.q_head;
  const auto used = [&](int i) {
    return i < singles ? of[i / kBlock] == 1 && s.there(p, i, token) : of[i - singles] == 2;
  };
  const auto key = [&](int i, bool value, int d) {
    return i < singles ? s.at(p, i, value, d)
                       : bf16(value ? mean_v : mean_k, (first_mean + i - singles) * kDim + d);
  };
  double top = -INFINITY;
  for (int i = tid; i < all; i += blockDim.x) {
    const bool use = used(i);
    double dot = 0;
    for (int d = 0; d < kDim && use; ++d) dot += rounded(q[d]) * key(i, false, d);
    l[i] = use ? dot * double(p.scale) + (i < singles ? 0 : log(double(count[first_mean + i - singles])))
               : -INFINITY;
    top = fmax(top, l[i]);
  }
  const auto [most, total] = softmax(l, all, top, shared);
  const int d = tid % kDim;
  double acc = 0;
  for (int i = tid / kDim; i < all; i += blockDim.x / kDim)
    if (l[i] > 0) acc += l[i] * key(i, true, d);
  shared[tid] = acc;
  __syncthreads();
  if (tid < kDim) {
    acc += shared[tid + kDim];
    const int64_t at = int64_t(place) * q_heads + q_head;
    out[at * kDim + d] = total > 0 ? acc / total : 0;
    if (d == 0) lse[at] = total > 0 ? most + log(total) : -INFINITY;
  }
}

}  // namespace

void reference_means(
    const DecodeParams& p, int rows, int blocks, double* k, double* v, int* count, cuda::Stream& stream) {
  means<<<dim3(unsigned(blocks), unsigned(p.kv_heads), unsigned(rows)), kDim, 0, stream.get()>>>(
      p, blocks, k, v, count);
  SE_CUDA(cudaGetLastError());
}

void reference_energies(const DecodeParams& p,
                        const TileOf* tiles,
                        int n,
                        int blocks,
                        const void* mean_k,
                        const int* count,
                        double* scratch,
                        double* energy,
                        cuda::Stream& stream) {
  energies<<<unsigned(n), 256, 0, stream.get()>>>(p, tiles, blocks, mean_k, count, scratch, energy);
  SE_CUDA(cudaGetLastError());
}

void reference_blocks(const DecodeParams& p,
                      const int2* which,
                      int tokens,
                      const uint8_t* state,
                      int blocks,
                      const void* mean_k,
                      const void* mean_v,
                      const int* count,
                      int64_t places,
                      double* scratch,
                      double* out,
                      double* lse,
                      cuda::Stream& stream) {
  attend<<<unsigned(tokens * p.kv_heads * p.group), 256, 0, stream.get()>>>(
      p, which, state, blocks, mean_k, mean_v, count, places, scratch, out, lse);
  SE_CUDA(cudaGetLastError());
}

}  // namespace se::kbench
