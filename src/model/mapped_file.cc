#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/fmt.h"
#include "model/mapped_guard.h"

namespace se {
namespace {

Status failed(const std::string& path, const char* verb, int error) {
  std::string text = format("{}: cannot {}: {}", path, verb, std::strerror(error));
  return error == ENOENT ? not_found(std::move(text)) : io_error(std::move(text));
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block us
  if (fd < 0) return failed(path, "open", errno);
  MappedFile file;
  file.path_ = path, file.fd_ = fd;  // closed with the object
  struct stat info {};
  if (fstat(fd, &info) != 0) return failed(path, "stat", errno);
  if (!S_ISREG(info.st_mode) || info.st_size == 0) {
    const char* found = S_ISDIR(info.st_mode)   ? "a directory"
                        : S_ISREG(info.st_mode) ? "empty"
                                                : "not a file";
    return io_error(format("{}: is {}, a model file was expected", path, found));
  }
  void* data = mmap(nullptr, size_t(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return failed(path, "map", errno);
  file.data_ = static_cast<const uint8_t*>(data);
  file.bytes_ = int64_t(info.st_size);
  file.guard_ = guard_mapping(file.data_, file.bytes_);
  if (file.guard_ < 0) return exhausted(format("{}: too many model files are open", path));
  return file;
}

MappedFile::~MappedFile() {
  if (guard_ >= 0) unguard_mapping(guard_);
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_t(bytes_));
  if (fd_ >= 0) close(fd_);
}

Status MappedFile::check() const {
  struct stat info {};
  if (fstat(fd_, &info) != 0) return failed(path_, "stat", errno);
  if (info.st_size < bytes_) {
    return io_error(format("{}: shrank from {} to {} bytes while in use, expected it to stay as it was",
                           path_,
                           bytes_,
                           int64_t(info.st_size)));
  }
  if (!mapping_torn(guard_)) return ok();
  return io_error(
      format("{}: a part of it could not be read while in use, expected it to stay as it was", path_));
}

void MappedFile::prefetch(int64_t offset, int64_t bytes) const {
  const int64_t page = sysconf(_SC_PAGESIZE), begin = offset / page * page;
  // Advice only: where it fails, pages come in one by one when they are read.
  (void)madvise(const_cast<uint8_t*>(data_) + begin, size_t(offset + bytes - begin), MADV_WILLNEED);
}

void MappedFile::release(int64_t offset, int64_t bytes) const {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t begin = (offset + page - 1) / page * page, end = (offset + bytes) / page * page;
  if (begin < end) (void)madvise(const_cast<uint8_t*>(data_) + begin, size_t(end - begin), MADV_DONTNEED);
}

}  // namespace se
