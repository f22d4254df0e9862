// Slow twin of decode attention over latents, in double.
#include <cuda_bf16.h>

#include "kbench/reference.h"
#include "kbench/softmax.cuh"

namespace se::kbench {
namespace {

using cuda::DecodeParams;

__global__ void attend(
    DecodeParams p, int key, int value, int64_t places, double* scratch, double* out, double* lse) {
  __shared__ double shared[256];
  const int head = blockIdx.x % p.group, row = p.ids[blockIdx.x / p.group], token = p.q_start[row];
  const int tid = threadIdx.x, past = p.counts[row] << p.unit_shift;
  const int from = p.new_k ? p.kv_from[row] : token + 1, all = past + token + 1 - from;
  double* l = scratch + blockIdx.x * places;
  const float* q = p.q + token * p.q_token + head * p.q_head;
  const auto slot_of = [&](int i) -> int64_t {
    const int64_t run = p.runs[p.start[row] + (i >> p.unit_shift)], in = i & ((1 << p.unit_shift) - 1);
    return in < (run & 0xffff) ? (run >> 16) + in : -1;
  };
  const auto at = [&](int i, int d) -> double {
    if (i >= past) return double(p.new_k[(from + i - past) * p.new_token + d]);
    const int64_t s = slot_of(i);
    const char* item =
        p.k + (s >> p.page_shift) * p.page_stride + (s & ((1 << p.page_shift) - 1)) * p.item_stride;
    return double(__bfloat162float(reinterpret_cast<const __nv_bfloat16*>(item)[d]));
  };
  double top = -INFINITY;
  for (int i = tid; i < all; i += blockDim.x) {
    const bool there = i >= past || slot_of(i) >= 0;
    double dot = 0;
    for (int d = 0; d < key && there; ++d) dot += double(q[d]) * at(i, d);
    l[i] = there ? dot * double(p.scale) : -INFINITY;
    top = fmax(top, l[i]);
  }
  const auto [most, total] = softmax(l, all, top, shared);
  const int64_t place = int64_t(token) * p.group + head;
  for (int d = tid; d < value; d += blockDim.x) {
    double acc = 0;
    for (int i = 0; i < all; ++i)
      if (l[i] > 0) acc += l[i] * at(i, d);
    out[place * value + d] = total > 0 ? acc / total : 0;
  }
  if (tid == 0) lse[place] = total > 0 ? most + log(total) : -INFINITY;
}

}  // namespace

void reference_latent(const DecodeParams& p,
                      int key,
                      int value,
                      int listed,
                      int64_t places,
                      double* scratch,
                      double* out,
                      double* lse,
                      cuda::Stream& stream) {
  attend<<<unsigned(listed * p.group), 256, 0, stream.get()>>>(p, key, value, places, scratch, out, lse);
  SE_CUDA(cudaGetLastError());
}

}  // namespace se::kbench
