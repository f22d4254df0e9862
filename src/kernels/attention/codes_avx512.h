// codes_avx512.h -- AttentionCore::absorb_codes with AVX-512.
#pragma once
#include "kernels/attention/core.h"

namespace se::cpu {

AbsorbCodes absorb_codes_avx512;    // any codes
AbsorbCodes absorb_floats8_avx512;  // those of 8-bit floats

}  // namespace se::cpu
