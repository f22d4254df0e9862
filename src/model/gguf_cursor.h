// model/gguf_cursor.h -- bounds-checked sequential reading of a mapped GGUF file. Used by gguf.cc and
// gguf_values.cc only.
#pragma once
#include <cstring>
#include <string_view>

#include "base/fmt.h"
#include "model/gguf.h"

namespace se {

// Every read names what it reads, so that a truncated file says where it ends.
class GgufCursor {
 public:
  explicit GgufCursor(const Gguf& gguf, int64_t at = 0) : gguf_(gguf), at_(at) {}
  int64_t at() const { return at_; }
  int64_t left() const { return gguf_.file().bytes() - at_; }

  Status skip(int64_t bytes, std::string_view what) {
    SE_TRY(need(bytes, what));
    at_ += bytes;
    return ok();
  }

  template <typename T>
  Result<T> read(std::string_view what) {
    SE_TRY(need(int64_t(sizeof(T)), what));
    T value;
    std::memcpy(&value, gguf_.file().data() + at_, sizeof(T));
    at_ += int64_t(sizeof(T));
    return value;
  }

  // A u64 count of things that take at least `least` bytes each.
  Result<int64_t> count(int64_t least, std::string_view what) {
    const int64_t start = at_;
    SE_ASSIGN(const uint64_t n, read<uint64_t>(what));
    if (n > uint64_t(left() / least)) {
      return gguf_.bad(
          start,
          format("{} is {}, but only {} bytes follow and each takes {} or more", what, n, left(), least));
    }
    return int64_t(n);
  }

  // A length-prefixed string, as a view into the mapping.
  Result<std::string_view> string(std::string_view what) {
    const int64_t start = at_;
    SE_ASSIGN(const uint64_t n, read<uint64_t>(what));
    if (n > uint64_t(left())) {
      return gguf_.bad(start, format("{} has length {}, but only {} bytes follow", what, n, left()));
    }
    const std::string_view text(reinterpret_cast<const char*>(gguf_.file().data()) + at_, size_t(n));
    at_ += int64_t(n);
    return text;
  }

 private:
  Status need(int64_t bytes, std::string_view what) const {
    if (bytes <= left()) return ok();
    return gguf_.bad(at_, format("the file ends in {}: {} bytes expected, {} left", what, bytes, left()));
  }

  const Gguf& gguf_;
  int64_t at_ = 0;
};

// Bytes of one value; 0 for strings and arrays, which say it themselves.
int64_t value_bytes(GgufType type);

}  // namespace se
