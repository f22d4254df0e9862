// device/device.h -- where work runs: Stream (ordered work on one device), Buffer and Arena (memory).
// The CPU stream is synchronous: when an op returns, its work is done.
// Goals: explicit ownership, addresses that stay. Non-goals: op dispatch, multi-device placement.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/tensor.h"

namespace se {

class ThreadPool;  // device/cpu/thread_pool.h

struct DeviceInfo {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
};

// Ordered work on one device. Not thread-safe: one owner (the engine thread).
class Stream {
 public:
  explicit Stream(ThreadPool& pool) : pool_(&pool) {}
  const DeviceInfo& device() const { return device_; }
  ThreadPool& pool() const { return *pool_; }

 private:
  DeviceInfo device_;
  ThreadPool* pool_;
};

// Unique ownership of 64-byte aligned memory. Fresh memory is zero, and lazily committed when large.
class Buffer {
 public:
  Buffer() = default;
  static Result<Buffer> allocate(int64_t bytes,
                                 DeviceKind device = DeviceKind::kCpu);  // kExhausted, with sizes
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer();
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Step-scoped bump memory: take() until reset(). Addresses stay valid until reset(); blocks are kept for
// the next step, so a steady state allocates nothing. Contents of a taken tensor are unspecified.
class Arena {
 public:
  TensorView take(DType dtype, std::initializer_list<int64_t> shape);
  TensorView take(DType dtype, std::span<const int64_t> shape);
  template <typename T>
  std::span<T> take(int64_t n) {
    return {reinterpret_cast<T*>(raw(n * int64_t(sizeof(T)))), size_t(n)};
  }
  // A mark to return to: what was taken after it is given back (inner scopes of a long step).
  struct Mark {
    size_t block = 0;
    int64_t used = 0;
  };
  Mark mark() const { return {block_, used_}; }
  void rewind(Mark m) { block_ = m.block, used_ = m.used; }
  void reset() { rewind({}); }
  int64_t reserved_bytes() const;

 private:
  char* raw(int64_t bytes);
  std::vector<Buffer> blocks_;
  size_t block_ = 0;
  int64_t used_ = 0;
};

}  // namespace se
