// model/gguf.h -- reader of GGUF files, versions 2 and 3, little-endian (spec/models.md 8.1).
// Goals: nothing in a file is trusted (counts, lengths, offsets and products are checked against the file's
// size before use, and before memory is asked for); weights are used where they lie in the mapping.
// Non-goals: split files (merge them first), big-endian files, writing (tests have
// model/testing/gguf_writer.h).
#pragma once
#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "device/tensor.h"
#include "model/mapped_file.h"

namespace se {

// Types of metadata values, numbered as in the file.
enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

struct GgufValue {
  GgufType type = GgufType::kU8, element = GgufType::kU8;  // element: of arrays
  int64_t count = 1;                                       // elements
  int64_t offset = 0;                                      // of the (first) value in the file
};

struct GgufTensor {
  std::string name;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> dims{1, 1, 1, 1};  // as in the file: dims[0] is the row, fastest
  int64_t offset = 0, bytes = 0;            // in the file
  int64_t numel() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
};

// Immutable once open; any thread may read. Every error is one line:  PATH: byte N: found, expected.
class Gguf {
 public:
  static Result<Gguf> open(const std::string& path);

  const MappedFile& file() const { return file_; }
  const std::string& path() const { return file_.path(); }
  int version() const { return version_; }

  // Typed metadata. Without a fallback a missing key is kNotFound; a value of another kind or out of range is
  // kInvalid. Integers of any width are one kind, and so are the two floats (an integer is a number, too).
  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }
  Result<int64_t> integer(std::string_view key,
                          int64_t min,
                          int64_t max,
                          std::optional<int64_t> fallback = {}) const;
  Result<double> number(std::string_view key,
                        double min,
                        double max,
                        std::optional<double> fallback = {}) const;
  Result<bool> boolean(std::string_view key, std::optional<bool> fallback = {}) const;
  Result<std::string> string(std::string_view key, std::optional<std::string> fallback = {}) const;
  // Arrays; a missing key is an error as above.
  Result<std::vector<std::string>> strings(std::string_view key) const;
  Result<std::vector<int32_t>> ints(std::string_view key) const;  // of bools, too: 0 and 1
  Result<std::vector<float>> floats(std::string_view key) const;
  // An integer written once or per layer: per-layer values must all be equal (kUnsupported otherwise).
  Result<int64_t> uniform_integer(std::string_view key,
                                  int64_t min,
                                  int64_t max,
                                  std::optional<int64_t> fallback = {}) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the file's order
  const GgufTensor* find_tensor(std::string_view name) const;
  // Row-major view (shape = dims reversed) into the mapping: it is read-only memory and lives as long as this
  // object does (moves included). Data is aligned to the file's alignment only, so kernels load unaligned.
  TensorView view(const GgufTensor& tensor) const;

  // An error about this file at a byte, and about a key.
  Status bad(int64_t offset, const std::string& text) const;
  Status bad_value(std::string_view key, const std::string& text) const;

 private:
  explicit Gguf(MappedFile file) : file_(std::move(file)) {}
  Status parse();
  Status parse_values(class GgufCursor& in, int64_t count);
  Status parse_tensors(class GgufCursor& in, int64_t count);
  Status parse_tensor(class GgufCursor& in, GgufTensor& out) const;
  Status place_tensors(int64_t header_end);
  Status check_overlaps() const;
  const GgufValue* find(std::string_view key) const;

  MappedFile file_;
  int version_ = 0;
  std::map<std::string, GgufValue, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
};

const char* to_string(GgufType type);

}  // namespace se
