// kernels/topk/max_pool_cuda.h -- max_pool of topk.h for many rows at once.
#pragma once
#include <cstdint>

namespace se::cuda {

class Stream;

struct MaxPoolParams {
  const float* score = nullptr;  // f32 [rows, n], row r at score + r * score_row
  int64_t score_row = 0, n = 0;
  int rows = 0, width = 1;  // odd
  float* out = nullptr;     // f32 [rows, n], row r at out + r * out_row; not `score`
  int64_t out_row = 0;
};
void max_pool(const MaxPoolParams& params, Stream& stream);

}  // namespace se::cuda
