// model/blocks/work.h -- what every block needs besides its tensors: how to compute, and where.
#pragma once
#include "kernels/linear/linear.h"

namespace se {

struct Work {
  Compute compute = Compute::kDefault;
  Arena& scratch;
  Stream& stream;
};

}  // namespace se
