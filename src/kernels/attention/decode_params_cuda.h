// kernels/attention/decode_params_cuda.h -- what the kernels of decode_cuda.h take: plain numbers and device
// pointers. Free of host code, so that device compilers read little.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

namespace se::cuda {

class Stream;

// What a decode launch may read while kernels ahead of it on the stream still run, because they do not write
// it. Those that may: the one just ahead, and the ones before it as far as kernels let their successors start
// before they have waited themselves.
enum class DecodeAhead : uint8_t {
  kNothing,
  kTables,  // all tables but the runs (a selection of a fixed number writes only these)
  kPast,    // the runs too, and K and V of the tokens in them
};

// Everything the kernels need: plain numbers and device pointers, captured by value.
struct DecodeParams {
  const char *k = nullptr, *v = nullptr;                      // planes; strides in bytes
  int64_t page_stride = 0, item_stride = 0, head_stride = 0;  // the same for K and V
  const char *k_scale = nullptr, *v_scale = nullptr;          // FP8: scales; KIVI: steps
  const char *k_min = nullptr, *v_min = nullptr;              // KIVI
  int64_t scale_item = 0, scale_head = 0;                     // of all of these
  int page_shift = 4, unit_shift = 4;
  const int64_t *runs = nullptr, *start = nullptr, *offset = nullptr;
  int64_t run_count = 0;  // length of runs
  const int32_t* counts = nullptr;
  int row_heads = 1, rows = 1;                 // rows: of the step (the tables' length)
  const int32_t *ids = nullptr, *n = nullptr;  // the row list
  int cap = 0;                                 // most rows in it
  DecodeAhead ahead = DecodeAhead::kNothing;
  const int32_t *q_start = nullptr, *kv_from = nullptr, *split = nullptr;
  const float* q = nullptr;  // f32 [tokens, q_heads, dim]; strides in elements
  int64_t q_token = 0, q_head = 0;
  const float *new_k = nullptr, *new_v = nullptr;  // present, or null: f32 [tokens, kv_heads, dim]
  int64_t new_token = 0, new_head = 0;
  int kv_heads = 0, group = 0;  // query heads of a KV head
  float scale = 1;
  // [cap * kv_heads * slices, max_splits, 8, dim or 2]; all bits set between launches
  float *part_out = nullptr, *part_lse = nullptr;
  int max_splits = 0;
  uint32_t by_row = 0;                   // set by decode_attention: divides by the entries of a row
  float *out = nullptr, *lse = nullptr;  // f32 [tokens, q_heads (, dim)]; strides in elements; may be null
  __half* out16 = nullptr;               // the same as halves, with out's strides; may be null
  int64_t out_token = 0, out_head = 0, lse_token = 0, lse_head = 0;
};

enum class DecodeType : uint8_t { kBF16, kF16, kE4M3, kE5M2, kKivi4 };
inline constexpr int kDecodeRows = 512;                          // most rows of a launch
inline int decode_slices(int group) { return (group + 7) / 8; }  // blocks take 8 query heads at a time
int decode_grid(DecodeType type, int dim);                       // blocks the current device holds at once
void decode_attention(const DecodeParams& params, DecodeType type, int dim, int grid, Stream& stream);

}  // namespace se::cuda
