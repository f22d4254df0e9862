// device/cuda/memory.h -- device and pinned host memory: unique owners, addresses that stay (graphs keep
// them).
#pragma once
#include <cstdint>
#include <utility>

#include "base/status.h"

namespace se::cuda {

enum class MemoryKind : uint8_t { kDevice, kPinned };

// Unique ownership of one allocation. Not zeroed.
class Buffer {
 public:
  Buffer() = default;
  // kExhausted, with what was asked for and what is free.
  static Result<Buffer> allocate(int64_t bytes, MemoryKind kind = MemoryKind::kDevice);
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer();
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* ptr() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_), std::swap(bytes_, other.bytes_), std::swap(kind_, other.kind_);
  }
  char* data_ = nullptr;
  int64_t bytes_ = 0;
  MemoryKind kind_ = MemoryKind::kDevice;
};

// Bump memory over one device allocation made at start-up: what a captured step takes lies at the same
// address in every replay. Running out is a bug of whoever sized it.
class Workspace {
 public:
  explicit Workspace(Buffer memory) : memory_(std::move(memory)) {}
  template <typename T>
  T* take(int64_t n) {
    return reinterpret_cast<T*>(raw(n * int64_t(sizeof(T))));
  }
  int64_t mark() const { return used_; }
  void rewind(int64_t mark) { used_ = mark; }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  char* raw(int64_t bytes);  // not inline: device compilers choke on the checked format strings
  Buffer memory_;
  int64_t used_ = 0;
};

}  // namespace se::cuda
