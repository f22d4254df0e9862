// base/checked_file.h -- files that hold state of ours: written whole or not at all, with a checksum at their
// end (XXH3, 64 bits, little-endian as the machines we run on). Goals: a reader trusts nothing before
// finish().
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace se {

// Writes beside the path and takes its place in finish(). Errors of writes are remembered until then.
class CheckedWriter {
 public:
  // kIo, naming the path: cannot be written, or is something other than a regular file.
  static Result<CheckedWriter> create(const std::string& path);
  CheckedWriter(CheckedWriter&&) noexcept;
  ~CheckedWriter();  // without finish(): leaves nothing behind

  void write(const void* bytes, int64_t n);
  void number(int64_t n) { write(&n, sizeof n); }
  template <typename T>
  void array(const std::vector<T>& a) {  // the count, then the elements
    number(int64_t(a.size()));
    write(a.data(), int64_t(a.size() * sizeof(T)));
  }
  int64_t bytes() const;  // so far
  Status finish();        // checksum, to the disk, rename

 private:
  struct State;
  explicit CheckedWriter(std::unique_ptr<State> s);
  std::unique_ptr<State> s_;
};

class CheckedReader {
 public:
  // kNotFound or kIo, naming the path.
  static Result<CheckedReader> open(const std::string& path);
  CheckedReader(CheckedReader&&) noexcept;
  ~CheckedReader();

  // kInvalid, naming path, byte and `what`, where the file ends before.
  Status read(void* bytes, int64_t n, const char* what);
  // A number within [least, most].
  Result<int64_t> number(int64_t least, int64_t most, const char* what);
  // At most `most` elements; nothing is allocated that the file has no bytes for.
  template <typename T>
  Result<std::vector<T>> array(int64_t most, const char* what);
  int64_t left() const;                       // bytes before the checksum
  Status bad(const std::string& text) const;  // kInvalid: "PATH: byte N: text"
  // The file must end here, and its checksum be that of what was read.
  Status finish();

 private:
  struct State;
  explicit CheckedReader(std::unique_ptr<State> s);
  std::unique_ptr<State> s_;
};

template <typename T>
Result<std::vector<T>> CheckedReader::array(int64_t most, const char* what) {
  SE_ASSIGN(const int64_t n, number(0, std::min(most, left() / int64_t(sizeof(T))), what));
  std::vector<T> a(static_cast<size_t>(n));
  SE_TRY(read(a.data(), n * int64_t(sizeof(T)), what));
  return a;
}

}  // namespace se
