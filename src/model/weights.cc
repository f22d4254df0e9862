#include "model/weights.h"

#include <algorithm>

#include "base/fmt.h"
#include "kernels/linear/linear.h"
#include "kernels/quant/quant.h"

namespace se {
namespace {

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += format("{}{}", i ? ", " : "", shape[i]);
  return text + "]";
}

}  // namespace

Result<TensorView> Weights::need(std::string_view name, std::initializer_list<int64_t> shape) {
  const std::span<const int64_t> wanted(shape.begin(), shape.size());
  const GgufTensor* tensor = gguf_.find_tensor(name);
  if (tensor == nullptr) {
    return not_found(
        format("{}: tensor {} is missing, expected {}", gguf_.path(), quoted(name), shape_text(wanted)));
  }
  const TensorView view = gguf_.view(*tensor);
  const std::span<const int64_t> found(view.shape.data(), size_t(view.rank));
  if (!std::equal(found.begin(), found.end(), wanted.begin(), wanted.end())) {
    return gguf_.bad(
        tensor->offset,
        format(
            "tensor {} is {}, expected {} (rows first)", quoted(name), to_string(view), shape_text(wanted)));
  }
  used_.emplace(name);
  return view;
}

Result<TensorView> Weights::projection(std::string_view name, int64_t out, int64_t in) {
  SE_ASSIGN(const TensorView view, need(name, {out, in}));
  if (supports_linear(view.dtype)) return view;
  return gguf_.bad(
      gguf_.find_tensor(name)->offset,
      format(
          "tensor {} is {}, expected a type that products are computed in", quoted(name), to_string(view)));
}

Result<TensorView> Weights::table(std::string_view name, int64_t rows, int64_t dim) {
  SE_ASSIGN(const TensorView view, need(name, {rows, dim}));
  if (supports_dequantize(view.dtype)) return view;
  return gguf_.bad(
      gguf_.find_tensor(name)->offset,
      format("tensor {} is {}, expected a type that rows are read from", quoted(name), to_string(view)));
}

Result<TensorView> Weights::vector(std::string_view name, int64_t n) {
  SE_ASSIGN(const TensorView view, need(name, {n}));
  if (view.dtype == DType::kF32) return view;
  return gguf_.bad(gguf_.find_tensor(name)->offset,
                   format("tensor {} is {}, expected f32", quoted(name), to_string(view)));
}

Result<TensorView> Weights::vector_if_any(std::string_view name, int64_t n) {
  return gguf_.find_tensor(name) == nullptr ? Result<TensorView>(TensorView{}) : vector(name, n);
}

Status Weights::all_used() const {
  for (const GgufTensor& tensor : gguf_.tensors()) {
    if (used_.contains(tensor.name)) continue;
    return unsupported(format("{}: byte {}: tensor {} has no place in this architecture, expected none such",
                              gguf_.path(),
                              tensor.offset,
                              quoted(tensor.name)));
  }
  return ok();
}

}  // namespace se
