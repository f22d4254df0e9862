// bench/kbench/softmax.cuh -- the softmax of the slow twins, in double. Device code only.
#pragma once

namespace se::kbench {

struct Softmax {
  double top = 0, total = 0;  // the greatest logit (-inf: nothing is there), the sum of exp(logit - top)
};

// logits[0 .. n), -inf where nothing is, become exp(logit - top). `top`: the greatest that this thread wrote;
// thread t of blockDim.x wrote logits t, t + blockDim.x, ... shared [blockDim.x]. All threads of the block;
// ends with a barrier.
__device__ inline Softmax softmax(double* logits, int64_t n, double top, double* shared) {
  const int tid = threadIdx.x, threads = blockDim.x;
  shared[tid] = top;
  __syncthreads();
  for (int i = 0; i < threads; ++i) top = fmax(top, shared[i]);
  __syncthreads();
  double total = 0;
  for (int64_t i = tid; i < n; i += threads) {
    logits[i] = top == -INFINITY ? 0 : exp(logits[i] - top);
    total += logits[i];
  }
  shared[tid] = total;
  __syncthreads();
  total = 0;
  for (int i = 0; i < threads; ++i) total += shared[i];
  __syncthreads();
  return {top, total};
}

}  // namespace se::kbench
