// model/mapped_file.h -- a regular file, mapped read-only for as long as the object lives.
#pragma once
#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace se {

// Movable; data() keeps its address when moved. Any thread may read.
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

 private:
  MappedFile() = default;
  void swap(MappedFile& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  std::string path_;
  const uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Brings mapped memory in, so that the first step does not pay for the disk. `data` starts a page.
void touch_pages(const uint8_t* data, int64_t bytes);

}  // namespace se
