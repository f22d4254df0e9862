// device/tensor.h -- DType and TensorView: pointer, dtype, shape, strides. A view never owns.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/check.h"

namespace se {

enum class DeviceKind : uint8_t { kCpu, kCuda };

// Plain types, then the block types that weights are computed in (GGUF's: spec/models.md 8.2).
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kU8,
  kI32,
  kI64,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kF8_32  // ours: f32 scale, 32 e4m3 codes that are numbers; x = scale * code. Block-FP8 files become this
};
const char* to_string(DType dtype);
int block_elements(DType dtype);  // 1 for plain types
int block_bytes(DType dtype);     // bytes of one block (of one element for plain types)
inline int64_t bytes_of(DType dtype, int64_t elements) {  // elements must be whole blocks
  return elements / block_elements(dtype) * block_bytes(dtype);
}

// Up to five dimensions; strides are in BYTES, so that planes of pages (256-byte steps) and rows of
// quantised blocks are views like any other. The last dimension of a block-typed view counts elements.
struct TensorView {
  static constexpr int kMaxRank = 5;
  void* data = nullptr;
  DType dtype = DType::kF32;
  DeviceKind device = DeviceKind::kCpu;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{}, stride{};

  // A contiguous view of `data`.
  static TensorView of(void* data,
                       DType dtype,
                       std::span<const int64_t> shape,
                       DeviceKind device = DeviceKind::kCpu);
  static TensorView of(void* data,
                       DType dtype,
                       std::initializer_list<int64_t> shape,
                       DeviceKind device = DeviceKind::kCpu) {
    return of(data, dtype, std::span(shape.begin(), shape.size()), device);
  }

  bool empty() const { return data == nullptr; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[size_t(i)];
    return rank == 0 ? 0 : n;
  }
  bool contiguous() const;
  // Address of an element (of a block's first element); indices beyond those given are zero.
  template <typename T, typename... Index>
  T* at(Index... index) const {
    static_assert(sizeof...(index) <= kMaxRank);
    int64_t offset = 0;
    int i = 0;
    ((offset += int64_t(index) * stride[size_t(i++)]), ...);
    return reinterpret_cast<T*>(static_cast<char*>(data) + offset);
  }
  template <typename T>
  T* ptr() const {
    return static_cast<T*>(data);
  }
  TensorView slice(int64_t begin, int64_t end) const;  // [begin, end) of the first dimension
  TensorView index(int64_t i) const;                   // drops the first dimension
};

std::string to_string(const TensorView& t);  // "f32[4, 64]", for messages

}  // namespace se
