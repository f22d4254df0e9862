#include "device/cuda/cublaslt.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "base/fmt.h"

namespace se::cuda {
namespace {

// By the loader's own search, then where a toolkit usually lies.
constexpr const char *kLibrary = "libcublasLt.so.13", *kUsual = "/usr/local/cuda/lib64/libcublasLt.so.13";

Result<CublasLt> open() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) library = dlopen(kUsual, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return unsupported(
        format("dense 16-bit products need cuBLAS 13: {} (is the toolkit's library folder in "
               "LD_LIBRARY_PATH?)",
               dlerror()));
  CublasLt lt{};
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function && !missing) missing = name;
  };
  find(lt.create, "cublasLtCreate");
  find(lt.version, "cublasLtGetVersion");
  find(lt.matmul, "cublasLtMatmul");
  find(lt.desc_create, "cublasLtMatmulDescCreate");
  find(lt.desc_destroy, "cublasLtMatmulDescDestroy");
  find(lt.desc_set, "cublasLtMatmulDescSetAttribute");
  find(lt.layout_create, "cublasLtMatrixLayoutCreate");
  find(lt.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(lt.preference_create, "cublasLtMatmulPreferenceCreate");
  find(lt.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(lt.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(lt.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(lt.algo_get, "cublasLtMatmulAlgoConfigGetAttribute");
  find(lt.text, "cublasLtGetStatusString");
  if (missing) return unsupported(format("{} has no {}: it is not of CUDA 13", kLibrary, missing));
  if (const cublasStatus_t s = lt.create(&lt.handle); s != CUBLAS_STATUS_SUCCESS)
    return unsupported(format("{} does not start: {}", kLibrary, lt.text(s)));
  return lt;
}

}  // namespace

Result<const CublasLt*> cublaslt() {
  static const Result<CublasLt> lt = open();
  if (!lt.ok()) return lt.status();
  return &*lt;
}

void cublaslt_failed(const char* file, int line, const char* call, const char* error) {
  std::fprintf(stderr, "%s:%d: cuBLASLt call failed: %s: %s\n", file, line, call, error);
  std::abort();
}

}  // namespace se::cuda
