// kernels/linear/skinny_short_cuda.h -- skinny_linear's way for up to 8 rows of x and FP8 weights that fit in
// half of the processors' shared memory. Private to the folder.
#pragma once
#include "kernels/linear/skinny_cuda.h"

namespace se::cuda {

bool skinny_short_takes(const SkinnyParams& p);
void skinny_short(const SkinnyParams& p, Stream& stream);

}  // namespace se::cuda
