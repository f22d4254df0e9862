// kernels/linear/linear_avx2.h -- the AVX2 routines, by file (internal to the AVX2 files).
#pragma once
#include "kernels/linear/linear_routines.h"

namespace se::linear_detail::avx2 {

void quantise(const float* x, int64_t begin, int64_t end, const Activations& a);
void block_rows(
    BlockType type, const Rows& w, const Activations& x, int64_t begin, int64_t end, const Output& y);
void float_rows(const Rows& w, const float* x, int64_t tokens, int64_t in, const Output& y);

}  // namespace se::linear_detail::avx2
