// Prefill attention over chosen blocks.
#include "kernels/attention/prefill_kernel_cuda.cuh"

namespace se::cuda {

void prefill_sparse(const PrefillParams& p, const PrefillMaps& maps, int grid, Stream& stream) {
  prefill::start<true>(p, maps, grid, stream);
}

}  // namespace se::cuda
