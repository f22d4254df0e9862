// model/weights.h -- the tensors of a file by name, each checked against the shape and type its user expects.
#pragma once
#include <set>
#include <string>
#include <string_view>

#include "device/tensor.h"
#include "model/gguf.h"

namespace se {

// Views returned point into the file's mapping (read-only). Not thread-safe; used while loading only.
// Errors are one line: kNotFound for a missing tensor, kInvalid for a wrong shape or type, naming both.
class Weights {
 public:
  // The Gguf must outlive this object; views live as long as the Gguf (moves included).
  explicit Weights(const Gguf& gguf) : gguf_(gguf) {}

  // Any type; shape row-major, e.g. need("blk.3.attn_q.weight", {out, in}).
  Result<TensorView> need(std::string_view name, std::initializer_list<int64_t> shape);
  // [out, in] of a type that linear() takes.
  Result<TensorView> projection(std::string_view name, int64_t out, int64_t in);
  // [rows, dim] of a type that embed() takes.
  Result<TensorView> table(std::string_view name, int64_t rows, int64_t dim);
  // f32 [n]: norms, biases, frequency divisors.
  Result<TensorView> vector(std::string_view name, int64_t n);
  // The same, or an empty view where the file has no such tensor.
  Result<TensorView> vector_if_any(std::string_view name, int64_t n);

  // A tensor nobody asked for is something the graph does not compute: refused, with its name.
  Status all_used() const;

 private:
  const Gguf& gguf_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace se
