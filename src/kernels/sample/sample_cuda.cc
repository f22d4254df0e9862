#include "kernels/sample/sample_cuda.h"

#include "kernels/sample/sample.h"
#include "kernels/sample/softmax_weights.h"

namespace se::cuda {

SampleRow sample_row(const SampleParams& p, uint64_t position) {
  return {
      p.temperature, p.top_p, sample_detail::lowest_exponent(p.min_p), p.top_k, p.seed, p.choice, position};
}

}  // namespace se::cuda
