// kernels/attn_scores/attn_scores_params_cuda.h -- what the kernels of attn_scores_cuda.h take: plain numbers
// and device pointers. Free of host code, so that device compilers read little.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace se::cuda {

class Stream;

struct ScorePart {          // keys of one part of the row
  const char* k = nullptr;  // strides in bytes
  int64_t page_stride = 0, item_stride = 0, head_stride = 0;
  const int64_t *runs = nullptr, *start = nullptr,
                *offset = nullptr;  // the row's are at [0]; offset may be null
  const int32_t* tokens = nullptr;
  int page_shift = 4, unit_shift = 4;
};

struct ScoresParams {
  ScorePart parts[4];
  int n_parts = 0;
  const float* q = nullptr;  // f32 [queries, q_heads, dim]; strides in elements
  int64_t q_token = 0, q_head = 0;
  const int64_t* last = nullptr;  // i64 [queries]
  int queries = 0, kv_heads = 0, group = 0;
  float scale = 1;
  bool prob = true, full_denominator = false, per_kv_head = false;
  int over_queries = 0, over_heads = 0;     // as Reduce
  int64_t ordinals = 0, low = 0, high = 0;  // candidates [low, high)
  int split = 0, splits = 0;                // tokens of a block, blocks of a head
  float2* state = nullptr;  // [q_heads, queries, splits] softmax of a split: greatest (base 2) and sum
  float* fold = nullptr;    // [kv_heads * slices, ordinals]
  float* out = nullptr;     // [heads, ordinals], rows out_head elements apart
  int64_t out_head = 0;
};

inline constexpr int kScoreHeads = 8;      // query heads that a block takes at once
inline constexpr int kScoreQueries = 256;  // most queries
inline int score_slices(int group) { return (group + kScoreHeads - 1) / kScoreHeads; }
void score_window(const ScoresParams& params, bool bf16, int dim, Stream& stream);

}  // namespace se::cuda
