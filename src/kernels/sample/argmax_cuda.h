// kernels/sample/argmax_cuda.h -- argmax of sample.h for many rows on CUDA: lowest id among equals, NaN last.
#pragma once
#include <cstdint>

namespace se::cuda {

class Stream;

inline constexpr int kArgmaxBlocks = 32;  // of a row

struct ArgmaxParams {
  const float* logits = nullptr;  // f32 [rows, vocab]
  int rows = 0;
  int64_t vocab = 0;
  uint64_t* best = nullptr;  // scratch [rows * kArgmaxBlocks]
  int32_t* ready = nullptr;  // i32 [rows], zero between launches
  int32_t* token = nullptr;  // out: i32 [rows]; all NaN: 0
};
void argmax(const ArgmaxParams& params, Stream& stream);

}  // namespace se::cuda
