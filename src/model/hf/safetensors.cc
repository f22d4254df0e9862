#include "model/hf/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/fmt.h"
#include "base/quoted.h"
#include "model/gguf.h"
#include "model/hf/safetensors_header.h"

namespace se {
namespace {

constexpr int64_t kMaxHeader = 100'000'000;

struct TypeName {
  const char* name;
  DType dtype;
};
constexpr TypeName kTypes[] = {{"F32", DType::kF32},
                               {"F16", DType::kF16},
                               {"BF16", DType::kBF16},
                               {"F8_E4M3", DType::kF8E4M3},
                               {"I64", DType::kI64},
                               {"I32", DType::kI32},
                               {"I8", DType::kI8},
                               {"U8", DType::kU8},
                               {"BOOL", DType::kU8}};

std::string known_types() {
  std::string names;
  for (const TypeName& t : kTypes) names += format("{}{}", names.empty() ? "" : ", ", t.name);
  return names;
}

// The shape, type and range of an entry against each other; the text of the error, or "". The offset stays
// relative to the data.
std::string convert(const SafeEntry& in, SafeTensor& out) {
  out.name = in.name;
  const auto* type = std::find_if(
      std::begin(kTypes), std::end(kTypes), [&](const TypeName& t) { return in.dtype == t.name; });
  if (type == std::end(kTypes))
    return format("has dtype {}, expected one of {}", se::quoted(in.dtype), known_types());
  out.dtype = type->dtype;
  if (!in.has_shape) return "has no shape";
  if (in.range.size() != 2) return format("has {} data_offsets, expected 2", in.range.size());
  int64_t bytes = block_bytes(out.dtype);
  out.rank = std::max(1, int(in.shape.size()));
  out.shape[0] = 1;
  for (size_t d = 0; d < in.shape.size(); ++d) {
    out.shape[d] = in.shape[d];
    if (in.shape[d] < 1 || __builtin_mul_overflow(bytes, in.shape[d], &bytes))
      return format("has {} as dimension {}, expected at least 1 and fewer than 2^63 bytes", in.shape[d], d);
  }
  const int64_t begin = in.range[0], end = in.range[1];
  if (begin < 0 || end < begin || end - begin != bytes)
    return format("has data_offsets [{}, {}], expected {} bytes for its shape", begin, end, bytes);
  out.offset = begin, out.bytes = bytes;
  return "";
}

}  // namespace

Status Safetensors::bad(int64_t offset, const std::string& text) const {
  return invalid(format("{}: byte {}: {}", file_.path(), offset, text));
}

Result<Safetensors> Safetensors::open(const std::string& path) {
  SE_ASSIGN(MappedFile file, MappedFile::open(path));
  Safetensors out(std::move(file));
  SE_TRY(out.parse());
  return out;
}

Status Safetensors::parse() {
  static_assert(std::endian::native == std::endian::little);
  uint64_t length = 0;
  if (file_.bytes() < int64_t(sizeof length))
    return bad(0, format("the file has {} bytes, expected the length of a header", file_.bytes()));
  std::memcpy(&length, file_.data(), sizeof length);
  const int64_t start = sizeof length, most = std::min(kMaxHeader, file_.bytes() - start);
  if (length > uint64_t(most))
    return bad(
        0,
        format("the header has {} bytes, expected at most {}: not safetensors, or truncated?", length, most));
  const std::string_view json(reinterpret_cast<const char*>(file_.data()) + start, size_t(length));
  auto entries = parse_safetensors_header(json, start);
  if (!entries.ok()) return entries.status().in(file_.path());
  tensors_.resize(entries->size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (const std::string error = convert((*entries)[i], tensors_[i]); !error.empty())
      return bad(start, format("tensor {} {}", se::quoted(tensors_[i].name), error));
  }
  return place(start + int64_t(length));
}

// Makes offsets absolute and checks that every tensor lies in the file, and no two on the same bytes.
Status Safetensors::place(int64_t data) {
  std::vector<const SafeTensor*> order;
  for (SafeTensor& t : tensors_) {
    if (t.bytes > file_.bytes() - data || t.offset > file_.bytes() - data - t.bytes) {
      return bad(data,
                 format("tensor {} has bytes {} to {} of the data, but there are {}: truncated?",
                        se::quoted(t.name),
                        t.offset,
                        t.offset + t.bytes,
                        file_.bytes() - data));
    }
    t.offset += data;
    order.push_back(&t);
  }
  std::sort(order.begin(), order.end(), [](const SafeTensor* a, const SafeTensor* b) {
    return a->offset < b->offset;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const SafeTensor &before = *order[i - 1], &here = *order[i];
    if (here.offset < before.offset + before.bytes) {
      return bad(here.offset,
                 format("tensor {} starts here, but tensor {} ends at byte {}: they overlap",
                        se::quoted(here.name),
                        se::quoted(before.name),
                        before.offset + before.bytes));
    }
  }
  return ok();
}

TensorView Safetensors::view(const SafeTensor& t) const {
  // As in Gguf::view: a TensorView has no read-only kind.
  void* data = const_cast<uint8_t*>(file_.data()) + t.offset;
  return TensorView::of(data, t.dtype, std::span<const int64_t>(t.shape.data(), size_t(t.rank)));
}

}  // namespace se
