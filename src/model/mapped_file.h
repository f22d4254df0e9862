// model/mapped_file.h -- a regular file, mapped read-only for as long as the object lives.
#pragma once
#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace se {

// Movable; data() keeps its address when moved. Any thread may read. Where the file shrinks or cannot be
// read, its bytes become zeros rather than the end of the process: ask check() before using what was computed
// from them.
class MappedFile {
 public:
  // Errors, each naming the path: kNotFound, or kIo for a file that is not readable, not regular or empty.
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~MappedFile();

  const std::string& path() const { return path_; }
  const uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // kIo once the file has become shorter than it was, or a page of it could not be read. Costs a system call.
  Status check() const;
  // Asks the system to read [offset, offset + bytes) soon.
  void prefetch(int64_t offset, int64_t bytes) const;
  // Takes the whole pages of [offset, offset + bytes) out of this process's memory until they are read again.
  void release(int64_t offset, int64_t bytes) const;

 private:
  MappedFile() = default;
  void swap(MappedFile& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(fd_, other.fd_);
    std::swap(guard_, other.guard_);
  }
  std::string path_;
  const uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
  int fd_ = -1;     // kept for check()
  int guard_ = -1;  // slot of mapped_guard.h
};

}  // namespace se
