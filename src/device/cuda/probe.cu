#include <cuda_runtime.h>

#include "device/cuda/probe.h"

#ifndef SE_CUDA_ARCHITECTURES
#define SE_CUDA_ARCHITECTURES "sm_90a"
#endif

namespace se::cuda {
namespace {
__global__ void probe() {}
}  // namespace

bool has_code_for_current_device() {
  cudaFuncAttributes attributes{};
  const bool there = cudaFuncGetAttributes(&attributes, probe) == cudaSuccess;
  if (!there) (void)cudaGetLastError();  // the question is answered: leave no error behind
  return there;
}

const char* built_architectures() { return SE_CUDA_ARCHITECTURES; }

}  // namespace se::cuda
