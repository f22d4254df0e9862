// device/cuda/cublaslt.h -- cuBLASLt, found when first asked for: nothing links against it, so that a binary
// without dense 16-bit products starts without it.
#pragma once
#include <cublasLt.h>

#include "base/status.h"

namespace se::cuda {

// The functions that we call, as the library exports them.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algo_get;
  decltype(&cublasLtGetStatusString) text;
  cublasLtHandle_t handle;  // of the device that was current at the first call
};

// kUnsupported, in one line, where the library or one of its functions is not there. One thread at first.
Result<const CublasLt*> cublaslt();

[[noreturn]] void cublaslt_failed(const char* file, int line, const char* call, const char* error);

}  // namespace se::cuda

// As SE_CUDA, for a call through `lt`.
#define SE_CUBLASLT(lt, call)                                                             \
  do {                                                                                    \
    if (const cublasStatus_t se_status_ = (lt).call; se_status_ != CUBLAS_STATUS_SUCCESS) \
      ::se::cuda::cublaslt_failed(__FILE__, __LINE__, #call, (lt).text(se_status_));      \
  } while (0)
