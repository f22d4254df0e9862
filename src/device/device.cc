#include "device/device.h"

#include <sys/mman.h>

#include <algorithm>

namespace se {

Result<Buffer> Buffer::allocate(int64_t bytes, DeviceKind device) {
  SE_CHECK(device == DeviceKind::kCpu, "a CPU build allocates host memory only");
  SE_CHECK(bytes >= 0, "{} bytes", bytes);
  Buffer b;
  if (bytes == 0) return b;
  void* p = ::mmap(
      nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return exhausted(format("cannot allocate {:.1f} MiB of memory", double(bytes) / 1048576));
  if (bytes >= 4 << 20) ::madvise(p, size_t(bytes), MADV_HUGEPAGE);
  b.data_ = static_cast<char*>(p);
  b.bytes_ = bytes;
  return b;
}

Buffer::~Buffer() {
  if (data_) ::munmap(data_, size_t(bytes_));
}

TensorView Arena::take(DType dtype, std::initializer_list<int64_t> shape) {
  return take(dtype, std::span(shape.begin(), shape.size()));
}

TensorView Arena::take(DType dtype, std::span<const int64_t> shape) {
  TensorView t = TensorView::of(nullptr, dtype, shape);
  t.data = raw(bytes_of(dtype, t.numel()));
  return t;
}

char* Arena::raw(int64_t bytes) {
  bytes = (std::max<int64_t>(bytes, 1) + 63) / 64 * 64;
  while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].bytes()) ++block_, used_ = 0;
  if (block_ == blocks_.size()) {
    const int64_t last = blocks_.empty() ? 0 : blocks_.back().bytes();
    auto fresh = Buffer::allocate(std::max({bytes, last, int64_t{1} << 20}));
    SE_CHECK(fresh.ok(), "scratch: {}", fresh.status().message());
    blocks_.push_back(fresh.take());
  }
  char* p = blocks_[block_].data() + used_;
  used_ += bytes;
  return p;
}

int64_t Arena::reserved_bytes() const {
  int64_t n = 0;
  for (const Buffer& b : blocks_) n += b.bytes();
  return n;
}

}  // namespace se
