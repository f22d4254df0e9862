// tests/fuzz/memory_file.h -- fuzzed bytes under a path, without a disk.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace se {

// One regular file, rewritten for every input.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("fuzz", 0)), path_("/proc/self/fd/" + std::to_string(fd_)) {
    if (fd_ < 0) abort();
  }
  const std::string& path() const { return path_; }
  void write(const uint8_t* data, size_t size) const {
    if (ftruncate(fd_, 0) != 0 || pwrite(fd_, data, size, 0) != ssize_t(size)) abort();
  }

 private:
  int fd_;
  std::string path_;
};

// A folder whose file `name` is `file`.
inline std::string folder_of(const char* name, const MemoryFile& file) {
  char folder[] = "/tmp/se_fuzz_XXXXXX";
  if (mkdtemp(folder) == nullptr) abort();
  if (symlink(file.path().c_str(), (std::string(folder) + "/" + name).c_str()) != 0) abort();
  return folder;
}

// An error is one line that says something.
inline void check_message(const std::string& message) {
  if (message.empty() || message.find('\n') != std::string::npos) abort();
}

}  // namespace se
