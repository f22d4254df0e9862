#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/fmt.h"
#include "base/quoted.h"
#include "kernels/linear/linear.h"
#include "kernels/quant/quant.h"
#include "model/fp8_blocks.h"

namespace se {
namespace {

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += format("{}{}", i ? ", " : "", shape[i]);
  return text + "]";
}

std::string show(const StoredTensor& stored) { return to_string(stored.view); }

bool is_shape(const TensorView& view, std::span<const int64_t> wanted) {
  return std::equal(view.shape.begin(), view.shape.begin() + view.rank, wanted.begin(), wanted.end());
}

bool plain_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

}  // namespace

Result<const ModelTensor*> Weights::find(std::string_view name, std::span<const int64_t> shape) {
  const ModelTensor* tensor = file_.find(name);
  if (tensor == nullptr) {
    return not_found(
        format("{}: tensor {} is missing, expected {}", file_.path(), quoted(name), shape_text(shape)));
  }
  used_.emplace(name);
  return tensor;
}

Result<TensorView> Weights::usable(const StoredTensor& stored) {
  const TensorView& view = stored.view;
  if (view.dtype == DType::kF8E4M3 && !stored.scales.empty()) return repack_fp8(file_, stored);
  const bool aligned = reinterpret_cast<uintptr_t>(view.data) % alignof(float) == 0;
  if (view.dtype != DType::kF32 || aligned) return view;  // other types are read byte by byte
  if (!view.contiguous()) return stored.bad("is f32 at an odd address, expected a multiple of 4 bytes");
  SE_ASSIGN(std::byte * copy, file_.own(stored.bytes));
  std::memcpy(copy, view.data, size_t(stored.bytes));
  TensorView out = view;
  out.data = copy;
  return out;
}

// A tensor in one part.
Result<TensorView> Weights::need(std::string_view name, std::initializer_list<int64_t> shape) {
  const std::span<const int64_t> wanted(shape.begin(), shape.size());
  SE_ASSIGN(const ModelTensor* tensor, find(name, wanted));
  const StoredTensor& stored = tensor->parts.front();
  if (tensor->stacked || !is_shape(stored.view, wanted)) {
    return stored.bad(format("is {}{}, expected {} (rows first)",
                             show(stored),
                             tensor->stacked ? " for each expert" : "",
                             shape_text(wanted)));
  }
  return usable(stored);
}

// [out, in] of a type that linear() takes.
Result<TensorView> Weights::multiplied(std::string_view name, int64_t out, int64_t in) {
  SE_ASSIGN(const TensorView view, need(name, {out, in}));
  if (supports_linear(view.dtype)) return view;
  const StoredTensor& stored = file_.find(name)->parts.front();
  return stored.bad(format("is {}, expected a type that products are computed in", show(stored)));
}

Result<Weight> Weights::packable(const TensorView& view) {
  const int64_t bytes = packed_bytes(view);
  if (bytes == 0) return Weight(view);
  SE_ASSIGN(std::byte * packed, file_.pack_later(view, bytes));
  return Weight(view, packed);
}

Result<Weight> Weights::projection(std::string_view name, int64_t out, int64_t in) {
  SE_ASSIGN(const TensorView view, multiplied(name, out, in));
  return packable(view);
}

Result<TensorView> Weights::table(std::string_view name, int64_t rows, int64_t dim) {
  SE_ASSIGN(const TensorView view, need(name, {rows, dim}));
  if (supports_dequantize(view.dtype)) return view;
  const StoredTensor& stored = file_.find(name)->parts.front();
  return stored.bad(format("is {}, expected a type that rows are read from", show(stored)));
}

Result<std::vector<Weight>> Weights::experts(std::string_view name,
                                             int64_t experts,
                                             int64_t out,
                                             int64_t in) {
  const int64_t stack[] = {experts, out, in}, one[] = {out, in};
  SE_ASSIGN(const ModelTensor* tensor, find(name, stack));
  const StoredTensor& first = tensor->parts.front();
  if (!tensor->stacked || int64_t(tensor->parts.size()) != experts) {
    return first.bad(format("is {} for {} experts, expected {}",
                            show(first),
                            tensor->stacked ? tensor->parts.size() : 0,
                            shape_text(stack)));
  }
  std::vector<Weight> weights;
  for (const StoredTensor& part : tensor->parts) {
    if (!is_shape(part.view, one))
      return part.bad(format("is {}, expected {} (rows first)", show(part), shape_text(one)));
    SE_ASSIGN(const TensorView view, usable(part));
    if (!supports_linear(view.dtype))
      return part.bad(format("is {}, expected a type that products are computed in", show(part)));
    SE_ASSIGN(Weight weight, packable(view));
    weights.push_back(weight);
  }
  return weights;
}

Result<TensorView> Weights::vector(std::string_view name, int64_t n) {
  SE_ASSIGN(TensorView view, need(name, {n}));
  const ModelTensor& tensor = *file_.find(name);
  const StoredTensor& stored = tensor.parts.front();
  if (!plain_float(view.dtype)) return stored.bad(format("is {}, expected f32, f16 or bf16", show(stored)));
  if (view.dtype != DType::kF32 || tensor.minus_one) {
    SE_ASSIGN(std::byte * owned, file_.own(n * int64_t(sizeof(float))));
    float* out = reinterpret_cast<float*>(owned);
    dequantize(view.dtype, view.data, n, out);
    for (int64_t i = 0; tensor.minus_one && i < n; ++i) out[i] += 1;
    view = TensorView::of(out, DType::kF32, {n});
  }
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(view.ptr<float>()[i]))
      return stored.bad(format("has {} at {}, expected finite numbers", view.ptr<float>()[i], i));
  }
  return view;
}

Result<TensorView> Weights::vector_if_any(std::string_view name, int64_t n) {
  return has(name) ? vector(name, n) : Result<TensorView>(TensorView{});
}

// view [heads, rows, in], as f32 unless it is a plain float already.
Result<TensorView> Weights::widened(const StoredTensor& stored, const TensorView& view) {
  if (plain_float(view.dtype)) return view;
  if (!supports_dequantize(view.dtype))
    return stored.bad(format("is {}, expected a type that products are computed in", show(stored)));
  const int64_t heads = view.shape[0], rows = view.shape[1], in = view.shape[2];
  SE_ASSIGN(std::byte * memory, file_.own(view.numel() * int64_t(sizeof(float))));
  const TensorView out = TensorView::of(memory, DType::kF32, {heads, rows, in});
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t r = 0; r < rows; ++r) dequantize(view.dtype, view.at<char>(h, r), in, out.at<float>(h, r));
  }
  return out;
}

// view [heads, a, b] of a plain float as an owned [heads, b, a].
Result<TensorView> Weights::transposed(const TensorView& view) {
  const int64_t heads = view.shape[0], a = view.shape[1], b = view.shape[2], size = block_bytes(view.dtype);
  SE_ASSIGN(std::byte * memory, file_.own(view.numel() * size));
  const TensorView out = TensorView::of(memory, view.dtype, {heads, b, a});
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < a; ++i) {
      for (int64_t j = 0; j < b; ++j)
        std::memcpy(out.at<char>(h, j, i), view.at<char>(h, i, j), size_t(size));
    }
  }
  return out;
}

Result<LatentUp> Weights::latent_up(int layer, int64_t heads, const MlaConfig& s) {
  const auto name = [&](const char* role) { return format("blk.{}.{}.weight", layer, role); };
  const auto part = [&](const char* role) -> const StoredTensor& {
    return file_.find(name(role))->parts.front();
  };
  LatentUp up;
  if (!has(name("attn_kv_b"))) {
    SE_ASSIGN(const TensorView k, need(name("attn_k_b"), {heads, s.kv_rank, s.nope_dim}));
    SE_ASSIGN(const TensorView v, need(name("attn_v_b"), {heads, s.v_dim, s.kv_rank}));
    SE_ASSIGN(const TensorView wide, widened(part("attn_k_b"), k));
    SE_ASSIGN(up.w_uk, transposed(wide));
    SE_ASSIGN(up.w_uv, widened(part("attn_v_b"), v));
    return up;
  }
  const int64_t rows = s.nope_dim + s.v_dim;  // of a head: its keys, then its values
  SE_ASSIGN(const TensorView both, multiplied(name("attn_kv_b"), heads * rows, s.kv_rank));
  const auto slice = [&](int64_t begin, int64_t n) {
    TensorView view = TensorView::of(both.at<char>(begin), both.dtype, {heads, n, int64_t(s.kv_rank)});
    view.stride[0] = rows * both.stride[0], view.stride[1] = both.stride[0];
    return view;
  };
  SE_ASSIGN(up.w_uk, widened(part("attn_kv_b"), slice(0, s.nope_dim)));
  SE_ASSIGN(up.w_uv, widened(part("attn_kv_b"), slice(s.nope_dim, s.v_dim)));
  return up;
}

Status Weights::all_used() const {
  for (const ModelTensor& tensor : file_.tensors()) {
    if (used_.contains(tensor.name)) continue;
    const StoredTensor& stored = tensor.parts.front();
    return unsupported(stored.bad("has no place in this architecture, expected none such").message());
  }
  return ok();
}

}  // namespace se
