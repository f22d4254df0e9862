// codes_avx512.h -- AttentionCore::absorb_codes with AVX-512.
#pragma once
#include "kernels/attention/core.h"

namespace se::cpu {

void absorb_codes_avx512(const float* q,
                         int64_t q_stride,
                         int rows,
                         float scale,
                         const CodeFormat& format,
                         const CodePiece* pieces,
                         int n_pieces,
                         const Running& run,
                         Ahead* ahead);

// The same of 8-bit floats.
void absorb_floats8_avx512(const float* q,
                           int64_t q_stride,
                           int rows,
                           float scale,
                           const CodeFormat& format,
                           const CodePiece* pieces,
                           int n_pieces,
                           const Running& run,
                           Ahead* ahead);

}  // namespace se::cpu
