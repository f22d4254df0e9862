// kernels/linear/skinny_wide_cuda.h -- skinny_linear's way for x16. Private to the folder.
#pragma once
#include "kernels/linear/skinny_cuda.h"

namespace se::cuda {

bool skinny_wide(const SkinnyParams& p, Stream& stream);  // false: k is too large

}  // namespace se::cuda
