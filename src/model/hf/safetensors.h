// model/hf/safetensors.h -- reader of safetensors files (spec/models.md 7.1).
// Goals: nothing in a file is trusted: the header's length, names, types, shapes and ranges are checked
// against the file before use; the header is read without building a document, so that memory stays bounded.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/tensor.h"
#include "model/mapped_file.h"

namespace se {

struct SafeTensor {
  std::string name;
  DType dtype = DType::kF32;                          // kU8 for BOOL
  int rank = 0;                                       // 1 for a scalar
  std::array<int64_t, TensorView::kMaxRank> shape{};  // row-major, each at least 1
  int64_t offset = 0, bytes = 0;                      // in the file
};

// Immutable once open; any thread may read. Every error is one line:  PATH: byte N: found, expected.
class Safetensors {
 public:
  // Errors: unreadable, a header longer than the file or than 100 MB, not JSON, a name twice, dtypes that
  // nothing here computes, shapes and ranges that contradict each other, ranges outside the file or on each
  // other's bytes.
  static Result<Safetensors> open(const std::string& path);

  const MappedFile& file() const { return file_; }
  const std::vector<SafeTensor>& tensors() const { return tensors_; }  // in the header's order
  // Read-only memory that lives as long as this object (moves included), of any alignment.
  TensorView view(const SafeTensor& tensor) const;

 private:
  explicit Safetensors(MappedFile file) : file_(std::move(file)) {}
  Status parse();
  Status place(int64_t data);
  Status bad(int64_t offset, const std::string& text) const;
  MappedFile file_;
  std::vector<SafeTensor> tensors_;
};

}  // namespace se
