// device/cuda/tensor_map.h -- tensor maps: what the copy engine of sm_90 reads boxes of.
#pragma once
#include <cuda.h>

#include <array>
#include <cstdint>

namespace se::cuda {

// A 5-D view at `base` (device): dimension 0 is contiguous; strides of the others in bytes, multiples of 16.
// A box takes box[i] / step[i] elements of dimension i, `step` apart; its first dimension is 128 bytes,
// permuted as hopper.cuh says. `bytes`: of an element, 2 (BF16) or 1. Dimensions may overlap in memory.
// Aborts on what the driver refuses: a bug.
CUtensorMap tensor_map(const void* base,
                       int bytes,
                       const std::array<int64_t, 5>& shape,
                       const std::array<int64_t, 4>& stride,
                       const std::array<int, 5>& box,
                       const std::array<int, 5>& step = {1, 1, 1, 1, 1});

// Rows of f32 [rows, n] at `base`, `pitch` bytes apart (a multiple of 16); a box is `box` numbers of one row
// (or of `box_rows`) as they are, from a multiple of 4 on (elsewhere: an illegal instruction).
CUtensorMap rows_map(const float* base, int64_t n, int64_t rows, int64_t pitch, int box, int box_rows = 1);

}  // namespace se::cuda
