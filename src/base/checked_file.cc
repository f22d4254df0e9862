#include "base/checked_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/fmt.h"
#include "base/hash.h"

namespace se {
namespace {

constexpr int64_t kBuffer = 1 << 20;
constexpr int64_t kSum = int64_t(sizeof(uint64_t));

Status system_error(const std::string& path, const char* what) {
  const int e = errno;
  return e == ENOENT ? not_found(format("{}: no such file or folder", path))
                     : io_error(format("{}: cannot {}: {}", path, what, std::strerror(e)));
}

struct HashDeleter {
  void operator()(XXH3_state_t* s) const { XXH3_freeState(s); }
};
using Hash = std::unique_ptr<XXH3_state_t, HashDeleter>;
Hash new_hash() {
  Hash h(XXH3_createState());
  XXH3_64bits_reset(h.get());
  return h;
}

}  // namespace

struct CheckedWriter::State {
  std::string path, beside;
  int fd = -1;
  int64_t bytes = 0;
  std::string buffer;
  Hash hash = new_hash();
  Status error;

  ~State() {
    if (fd >= 0) ::close(fd), ::unlink(beside.c_str());
  }
  void flush() {
    for (size_t at = 0; at < buffer.size() && error.ok();) {
      const ssize_t n = ::write(fd, buffer.data() + at, buffer.size() - at);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) error = system_error(path, "write");
      at += size_t(std::max<ssize_t>(n, 0));
    }
    buffer.clear();
  }
};

CheckedWriter::CheckedWriter(std::unique_ptr<State> s) : s_(std::move(s)) {}
CheckedWriter::CheckedWriter(CheckedWriter&&) noexcept = default;
CheckedWriter::~CheckedWriter() = default;

Result<CheckedWriter> CheckedWriter::create(const std::string& path) {
  auto s = std::make_unique<State>();
  s->path = path, s->beside = format("{}.{}.part", path, ::getpid());
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
    return io_error(format("{}: wanted a regular file to write to", path));
  s->fd = ::open(s->beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (s->fd < 0) return system_error(path, "write");
  s->buffer.reserve(kBuffer);
  return CheckedWriter(std::move(s));
}

void CheckedWriter::write(const void* bytes, int64_t n) {
  if (n == 0) return;
  XXH3_64bits_update(s_->hash.get(), bytes, size_t(n));
  s_->bytes += n;
  s_->buffer.append(static_cast<const char*>(bytes), size_t(n));
  if (int64_t(s_->buffer.size()) >= kBuffer) s_->flush();
}

int64_t CheckedWriter::bytes() const { return s_->bytes; }

Status CheckedWriter::finish() {
  const uint64_t sum = XXH3_64bits_digest(s_->hash.get());
  s_->buffer.append(reinterpret_cast<const char*>(&sum), kSum);
  s_->flush();
  SE_TRY(s_->error);
  if (::fsync(s_->fd) != 0) return system_error(s_->path, "write");
  if (::rename(s_->beside.c_str(), s_->path.c_str()) != 0) return system_error(s_->path, "write");
  ::close(s_->fd);
  s_->fd = -1;
  return ok();
}

struct CheckedReader::State {
  std::string path, buffer;
  int fd = -1;
  int64_t bytes = 0, at = 0;  // of the file; read so far
  size_t used = 0;            // of the buffer
  Hash hash = new_hash();
  ~State() {
    if (fd >= 0) ::close(fd);
  }
  // Bytes without their hash.
  Status take(char* to, int64_t n) {
    while (n > 0) {
      if (used == buffer.size()) {
        buffer.resize(kBuffer), used = 0;
        const ssize_t got = ::read(fd, buffer.data(), buffer.size());
        if (got <= 0) {
          buffer.clear();
          if (got < 0 && errno == EINTR) continue;
          return got < 0 ? system_error(path, "read") : invalid(format("{}: became shorter", path));
        }
        buffer.resize(size_t(got));
      }
      const int64_t some = std::min(n, int64_t(buffer.size() - used));
      std::memcpy(to, buffer.data() + used, size_t(some));
      to += some, n -= some, used += size_t(some);
    }
    return ok();
  }
};

CheckedReader::CheckedReader(std::unique_ptr<State> s) : s_(std::move(s)) {}
CheckedReader::CheckedReader(CheckedReader&&) noexcept = default;
CheckedReader::~CheckedReader() = default;

Result<CheckedReader> CheckedReader::open(const std::string& path) {
  auto s = std::make_unique<State>();
  s->path = path;
  s->fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info {};
  if (s->fd < 0 || ::fstat(s->fd, &info) != 0) return system_error(path, "read");
  if (!S_ISREG(info.st_mode)) return io_error(format("{}: wanted a regular file", path));
  s->bytes = info.st_size;
  return CheckedReader(std::move(s));
}

int64_t CheckedReader::left() const { return std::max<int64_t>(0, s_->bytes - kSum - s_->at); }

Status CheckedReader::bad(const std::string& text) const {
  return invalid(format("{}: byte {}: {}", s_->path, s_->at, text));
}

Status CheckedReader::read(void* bytes, int64_t n, const char* what) {
  if (n > left()) return bad(format("{}: wanted {} bytes, the file has {} more", what, n, left()));
  SE_TRY(s_->take(static_cast<char*>(bytes), n));
  if (n > 0) XXH3_64bits_update(s_->hash.get(), bytes, size_t(n));
  s_->at += n;
  return ok();
}

Result<int64_t> CheckedReader::number(int64_t least, int64_t most, const char* what) {
  int64_t n = 0;
  SE_TRY(read(&n, sizeof n, what));
  if (n < least || n > most) {
    s_->at -= int64_t(sizeof n);
    return bad(format("{} is {}, wanted {} to {}", what, n, least, most));
  }
  return n;
}

Status CheckedReader::finish() {
  if (left() > 0) return bad(format("wanted the end of the file, {} more bytes follow", left()));
  uint64_t sum = 0;
  if (s_->at + kSum > s_->bytes) return bad("the file ends before its checksum");
  SE_TRY(s_->take(reinterpret_cast<char*>(&sum), kSum));
  if (sum != XXH3_64bits_digest(s_->hash.get())) return bad("the checksum does not fit: the file is damaged");
  return ok();
}

}  // namespace se
