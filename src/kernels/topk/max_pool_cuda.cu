#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/stream.h"
#include "kernels/topk/max_pool_cuda.h"

namespace se::cuda {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void max_pool_kernel(const __grid_constant__ MaxPoolParams p) {
  pdl_wait();
  pdl_release();
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.n) return;
  const float* score = p.score + blockIdx.y * p.score_row;
  const int64_t from = max(int64_t(0), i - p.width / 2), to = min(p.n - 1, i + p.width / 2);
  float most = score[i];
  for (int64_t j = from; j <= to; ++j) {
    const float x = score[j];
    if (x > most) most = x;
  }
  p.out[blockIdx.y * p.out_row + i] = most;
}

}  // namespace

void max_pool(const MaxPoolParams& p, Stream& stream) {
  if (p.rows < 1 || p.n < 1) return;
  if (p.width < 1 || p.width % 2 == 0) {
    std::fprintf(stderr, "max_pool: width %d: expected an odd number\n", p.width);
    std::abort();
  }
  launch(max_pool_kernel,
         dim3(unsigned((p.n + kThreads - 1) / kThreads), unsigned(p.rows)),
         kThreads,
         0,
         stream.get(),
         p);
}

}  // namespace se::cuda
