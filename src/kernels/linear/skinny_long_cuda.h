// kernels/linear/skinny_long_cuda.h -- skinny_linear's way for 9 to 48 rows of x16 and many rows of w.
// Private to the folder.
#pragma once
#include "kernels/linear/skinny_cuda.h"

namespace se::cuda {

bool skinny_long_takes(const SkinnyParams& p);
void skinny_long(const SkinnyParams& p, Stream& stream);

}  // namespace se::cuda
