// read/quest/quest_cuda.h -- Quest scores on CUDA: for each full unit the largest, over all query heads, of
// sum_d max(q_d * hi_d, q_d * lo_d). As score.h, up to the order of the sums: the split query goes to the
// tensor cores as two BF16 pieces (error about 2^-17 of the terms), sums in f32, the same for a unit whatever
// its neighbours.
#pragma once
#include <cstdint>

namespace se::cuda {
class Stream;
}

namespace se::quest::cuda {

struct ScoreParams {
  const char *lo = nullptr, *hi = nullptr;  // bf16 planes [page id, item, kv_heads, 128]; strides in bytes
  float levels = 0;  // > 0: hi is a plane of F16 steps (KIVI's), of lo's strides: a bound is lo + levels step
  int64_t page_stride = 256, item_stride = 0, head_stride = 0;
  int page_shift = 4, unit_shift = 4;                                  // tokens of a page, of a unit
  const int64_t *runs = nullptr, *start = nullptr, *offset = nullptr;  // KvIndex: one run per page
  int64_t pool = 0;                                                    // runs in the pool
  const int32_t* units = nullptr;                                      // i32 [rows] full units of a row
  int rows = 1;                                                        // of the step (the tables' length)
  const int32_t *ids = nullptr, *n = nullptr;                          // the row list
  int cap = 0;
  const int32_t* q_start = nullptr;
  const float* q = nullptr;  // f32 [tokens, kv_heads * group, 128]; strides in elements
  int64_t q_token = 0, q_head = 0;
  int kv_heads = 0, group = 0;  // group <= 8
  float* score = nullptr;       // f32 [cap, most units]; entries past a row's units are left alone
  int64_t score_row = 0;
  int64_t most_units = 0;
};

// Tables and bounds are read before the kernel ahead of this one on the stream is done: it may write q, not
// them.
void score_units(const ScoreParams& params, se::cuda::Stream& stream);

}  // namespace se::quest::cuda
