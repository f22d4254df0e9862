// kernels/topk/topk_cuda.h -- top_k of topk.h for many rows at once: score descending, then lower index; -0
// ranks as +0, NaN last. Exact and deterministic.
#pragma once
#include <cstdint>

namespace se::cuda {

class Stream;

struct TopKParams {
  const float* score = nullptr;  // f32 [rows, ..], row r at score + r * score_row, 16-byte aligned rows
  int64_t score_row = 0;         // all of it readable, whatever n
  const int32_t* n = nullptr;    // i32 [rows] scores of a row (device)
  int rows = 0, k = 0;
  int32_t* index = nullptr;  // i32 [rows, ..] ascending; the first min(k, n) of a row are written
  int64_t index_row = 0;
  // With `runs`: those of the chosen, out_runs[row * index_row + i] = runs[start[row] + index[i]].
  const int64_t *runs = nullptr, *start = nullptr;
  int64_t* out_runs = nullptr;
};

void top_k(const TopKParams& params, Stream& stream);

}  // namespace se::cuda
