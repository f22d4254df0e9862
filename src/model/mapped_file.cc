#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/fmt.h"

namespace se {
namespace {

constexpr int64_t kPageBytes = 4096;  // the smallest page of any system we run on

Status failed(const std::string& path, const char* verb, int error) {
  std::string text = format("{}: cannot {}: {}", path, verb, std::strerror(error));
  return error == ENOENT ? not_found(std::move(text)) : io_error(std::move(text));
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block us
  if (fd < 0) return failed(path, "open", errno);
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return failed(path, "stat", error);
  }
  if (!S_ISREG(info.st_mode) || info.st_size == 0) {
    close(fd);
    const char* found = S_ISDIR(info.st_mode)   ? "a directory"
                        : S_ISREG(info.st_mode) ? "empty"
                                                : "not a file";
    return io_error(format("{}: is {}, a model file was expected", path, found));
  }
  void* data = mmap(nullptr, size_t(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  close(fd);  // the mapping keeps the file
  if (data == MAP_FAILED) return failed(path, "map", error);
  MappedFile file;
  file.path_ = path;
  file.data_ = static_cast<const uint8_t*>(data);
  file.bytes_ = int64_t(info.st_size);
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_t(bytes_));
}

void touch_pages(const uint8_t* data, int64_t bytes) {
  // Advice only: where it fails, the reads below still bring the pages in, one by one.
  (void)madvise(const_cast<uint8_t*>(data), size_t(bytes), MADV_WILLNEED);
  volatile uint8_t sink = 0;
  for (int64_t at = 0; at < bytes; at += kPageBytes) sink = data[at];
  (void)sink;
}

}  // namespace se
