// device/cuda/check.h -- SE_CUDA(call): a CUDA error after start-up is a bug or a broken device; it names the
// call, the error and the place, and aborts. Expected failures (no GPU, too little memory) are Status, in
// device.h and memory.h.
#pragma once
#include <cuda_runtime.h>

namespace se::cuda {
[[noreturn]] void call_failed(const char* file, int line, const char* call, cudaError_t error);
}

#define SE_CUDA(call)                                                                \
  do {                                                                               \
    if (const cudaError_t se_error_ = (call); se_error_ != cudaSuccess) [[unlikely]] \
      ::se::cuda::call_failed(__FILE__, __LINE__, #call, se_error_);                 \
  } while (0)
