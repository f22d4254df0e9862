#include "device/cuda/tensor_map.h"

#include <algorithm>

#include "base/check.h"
#include "device/cuda/check.h"

namespace se::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {  // through the runtime: nothing links against the driver
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  SE_CUDA(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
  SE_CHECK(found != nullptr, "the driver has no cuTensorMapEncodeTiled ({})", int(result));
  return reinterpret_cast<Encode>(found);
}

CUtensorMap make(CUtensorMapDataType type,
                 CUtensorMapSwizzle swizzle,
                 const void* base,
                 const std::array<int64_t, 5>& shape,
                 const std::array<int64_t, 4>& stride,
                 const std::array<int, 5>& box,
                 const std::array<int, 5>& step) {
  static const Encode encode = find_encode();
  cuuint64_t sizes[5], strides[4];
  cuuint32_t boxes[5], steps[5];
  for (size_t i = 0; i < 5; ++i) {
    sizes[i] = cuuint64_t(std::min(shape[i], int64_t{0x7fffffff}));
    boxes[i] = cuuint32_t(box[i]), steps[i] = cuuint32_t(step[i]);
    if (i < 4) strides[i] = cuuint64_t(stride[i]);
  }
  alignas(64) CUtensorMap map;
  const CUresult r = encode(&map,
                            type,
                            5,
                            const_cast<void*>(base),
                            sizes,
                            strides,
                            boxes,
                            steps,
                            CU_TENSOR_MAP_INTERLEAVE_NONE,
                            swizzle,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  SE_CHECK(r == CUDA_SUCCESS,
           "tensor map of [{}, {}, {}, {}, {}], strides {}, {}, {}, {}: the driver says {}",
           shape[4],
           shape[3],
           shape[2],
           shape[1],
           shape[0],
           stride[3],
           stride[2],
           stride[1],
           stride[0],
           int(r));
  return map;
}

}  // namespace

CUtensorMap tensor_map(const void* base,
                       int bytes,
                       const std::array<int64_t, 5>& shape,
                       const std::array<int64_t, 4>& stride,
                       const std::array<int, 5>& box,
                       const std::array<int, 5>& step) {
  return make(bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
              CU_TENSOR_MAP_SWIZZLE_128B,
              base,
              shape,
              stride,
              box,
              step);
}

CUtensorMap rows_map(const float* base, int64_t n, int64_t rows, int64_t pitch, int box, int box_rows) {
  return make(CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
              CU_TENSOR_MAP_SWIZZLE_NONE,
              base,
              {n, rows, 1, 1, 1},
              {pitch, pitch * rows, pitch * rows, pitch * rows},
              {box, box_rows, 1, 1, 1},
              {1, 1, 1, 1, 1});
}

}  // namespace se::cuda
