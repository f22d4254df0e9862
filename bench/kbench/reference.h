// bench/kbench/reference.h -- slow twins in double on the device: one obvious loop each, nothing shared with
// the kernels under test. The formulas are those of the CPU code (store/fp8, store/kivi, kernels/attention).
#pragma once
#include <cstdint>

#include "device/cuda/stream.h"
#include "kernels/attention/decode_params_cuda.h"

namespace se::kbench {

// out [tokens, q_heads, dim], lse [tokens, q_heads] (-inf where nothing is seen) of every listed row;
// scratch doubles [listed rows * q_heads, places]. places: the most of a row, its present included.
void reference_attention(const cuda::DecodeParams& p,
                         cuda::DecodeType type,
                         int dim,
                         int listed,
                         int64_t places,
                         double* scratch,
                         double* out,
                         double* lse,
                         cuda::Stream& stream);

// A sliding window (0: none): KvIndex::first, StepRows::pos.
struct Window {
  int tokens = 0;
  const int64_t* first = nullptr;
  const int32_t* pos = nullptr;
};
// The same for the tokens of `which` (row, token of the step), parts of 128 channels; out and lse by place in
// `which`; size, as out: the sum of the terms' sizes. q, past and present are rounded to BF16 first, as
// prefill attention does.
void reference_prefill(const cuda::DecodeParams& p,
                       cuda::DecodeType type,
                       const Window& window,
                       const int2* which,
                       int tokens,
                       int64_t places,
                       double* scratch,
                       double* out,
                       double* lse,
                       double* size,
                       cuda::Stream& stream);

// Decode over latents (BF16 keys of `key` channels, their first `value` as values): out [tokens, heads,
// value], lse; scratch [listed * heads, places].
void reference_latent(const cuda::DecodeParams& p,
                      int key,
                      int value,
                      int listed,
                      int64_t places,
                      double* scratch,
                      double* out,
                      double* lse,
                      cuda::Stream& stream);

// Means of blocks of 128 places of a row's past, then of its present tokens from kv_from on (rounded to
// BF16): k, v [rows, kv_heads, blocks, 128], zeros where nothing is; count [rows, kv_heads, blocks]. ids in
// order.
void reference_means(const cuda::DecodeParams& p,
                     int rows,
                     int blocks,
                     double* k,
                     double* v,
                     int* count,
                     cuda::Stream& stream);

// A packed tile: query rows first .. first + 127 of KV head `head` (row = position * group + head of group).
struct TileOf {
  int row, head, tile, past_blocks, blocks, active;
};
// energy [tiles, blocks]: sum over the tile's queries of exp(logit with mean_k (BF16) - the tile's greatest),
// of blocks < active whose first key the query sees; scratch [tiles, 128, blocks].
void reference_energies(const cuda::DecodeParams& p,
                        const TileOf* tiles,
                        int n,
                        int blocks,
                        const void* mean_k,
                        const int* count,
                        double* scratch,
                        double* energy,
                        cuda::Stream& stream);

// Attention of tokens `which` (row, token), all heads, over the blocks with state 1 ([tokens, kv_heads,
// blocks]) and the means (BF16, counted) of those with state 2; scratch [tokens * q_heads, places + blocks].
void reference_blocks(const cuda::DecodeParams& p,
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
                      cuda::Stream& stream);

// out [rows, n] = sum_k w[n, k] * x[rows, k], and the sum of the terms' sizes. w: E4M3 with scales
// [n / 128, k / 128], or BF16 (scale null).
void reference_linear(const void* w,
                      const float* scale,
                      int n,
                      int k,
                      const float* x,
                      int rows,
                      double* out,
                      double* size,
                      cuda::Stream& stream);

}  // namespace se::kbench
