#include "model/gguf.h"

#include <algorithm>
#include <cstring>

#include "base/fmt.h"
#include "base/quoted.h"
#include "model/gguf_cursor.h"

namespace se {
namespace {

constexpr int kMaxNesting = 4;                       // arrays of arrays: real files have none
constexpr int64_t kLeastValueBytes = 8 + 1 + 4 + 1;  // key, type, value
constexpr int64_t kLeastTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr int64_t kMinAlignment = 8, kMaxAlignment = int64_t(1) << 20;  // f32 tensors are read as floats

struct TensorType {
  uint32_t id;
  const char* name;
  std::optional<DType> dtype;  // none: known, but not computed here
};
constexpr TensorType kTensorTypes[] = {{0, "F32", DType::kF32},
                                       {1, "F16", DType::kF16},
                                       {2, "Q4_0", DType::kQ4_0},
                                       {3, "Q4_1", DType::kQ4_1},
                                       {6, "Q5_0", DType::kQ5_0},
                                       {7, "Q5_1", DType::kQ5_1},
                                       {8, "Q8_0", DType::kQ8_0},
                                       {9, "Q8_1", {}},
                                       {10, "Q2_K", DType::kQ2_K},
                                       {11, "Q3_K", DType::kQ3_K},
                                       {12, "Q4_K", DType::kQ4_K},
                                       {13, "Q5_K", DType::kQ5_K},
                                       {14, "Q6_K", DType::kQ6_K},
                                       {15, "Q8_K", {}},
                                       {16, "IQ2_XXS", {}},
                                       {17, "IQ2_XS", {}},
                                       {18, "IQ3_XXS", {}},
                                       {19, "IQ1_S", {}},
                                       {20, "IQ4_NL", {}},
                                       {21, "IQ3_S", {}},
                                       {22, "IQ2_S", {}},
                                       {23, "IQ4_XS", {}},
                                       {24, "I8", DType::kI8},
                                       {25, "I16", {}},
                                       {26, "I32", DType::kI32},
                                       {27, "I64", DType::kI64},
                                       {28, "F64", {}},
                                       {29, "IQ1_M", {}},
                                       {30, "BF16", DType::kBF16},
                                       {34, "TQ1_0", {}},
                                       {35, "TQ2_0", {}},
                                       {39, "MXFP4", {}}};

std::string known_types() {
  std::string names;
  for (const TensorType& t : kTensorTypes) {
    if (t.dtype) names += format("{}{}", names.empty() ? "" : ", ", t.name);
  }
  return names;
}

bool multiply(int64_t a, int64_t b, int64_t& out) { return !__builtin_mul_overflow(a, b, &out); }

// Steps over `count` values of one type; strings and arrays are walked, so that later reads cannot leave the
// file.
Status skip_values(
    const Gguf& gguf, GgufCursor& in, GgufType type, int64_t count, int nesting, const std::string& what);

Result<GgufValue> array_header(const Gguf& gguf, GgufCursor& in, const std::string& what) {
  const int64_t start = in.at();
  SE_ASSIGN(const uint32_t element, in.read<uint32_t>(what));
  if (element > uint32_t(GgufType::kF64)) {
    return gguf.bad(start, format("{} is an array of type {}, expected 0 to 12", what, element));
  }
  GgufValue value{GgufType::kArray, GgufType(element)};
  const int64_t least = value.element == GgufType::kArray    ? 12
                        : value.element == GgufType::kString ? 8
                                                             : value_bytes(value.element);
  SE_ASSIGN(value.count, in.count(least, format("the number of elements of {}", what)));
  value.offset = in.at();
  return value;
}

Status skip_values(
    const Gguf& gguf, GgufCursor& in, GgufType type, int64_t count, int nesting, const std::string& what) {
  if (type != GgufType::kString && type != GgufType::kArray) {
    int64_t bytes = 0;
    if (!multiply(count, value_bytes(type), bytes)) return gguf.bad(in.at(), format("{} is too long", what));
    return in.skip(bytes, what);
  }
  if (type == GgufType::kArray && nesting == kMaxNesting) {
    return gguf.bad(in.at(), format("{} nests arrays deeper than {}", what, kMaxNesting));
  }
  for (int64_t i = 0; i < count; ++i) {
    if (type == GgufType::kString) {
      if (auto text = in.string(what); !text.ok()) return text.status();
    } else {
      SE_ASSIGN(const GgufValue inner, array_header(gguf, in, what));
      SE_TRY(skip_values(gguf, in, inner.element, inner.count, nesting + 1, what));
    }
  }
  return ok();
}

}  // namespace

Status Gguf::bad(int64_t offset, const std::string& text) const {
  return invalid(format("{}: byte {}: {}", path(), offset, text));
}

Result<Gguf> Gguf::open(const std::string& path) {
  SE_ASSIGN(MappedFile file, MappedFile::open(path));
  Gguf gguf(std::move(file));
  SE_TRY(gguf.parse());
  return gguf;
}

Status Gguf::parse() {
  if (std::memcmp(file_.data(), "GGUF", size_t(std::min<int64_t>(4, file_.bytes()))) != 0 ||
      file_.bytes() < 4) {
    const std::string_view found(reinterpret_cast<const char*>(file_.data()),
                                 size_t(std::min<int64_t>(4, file_.bytes())));
    return bad(0, format("not a GGUF file: it starts with {}, expected 'GGUF'", quoted(found)));
  }
  GgufCursor in(*this, 4);
  SE_ASSIGN(const uint32_t version, in.read<uint32_t>("the version"));
  if (version == 0x02000000u || version == 0x03000000u) {
    return bad(4, "the file is big-endian, expected little-endian GGUF 2 or 3");
  }
  if (version != 2 && version != 3) return bad(4, format("GGUF version {}, expected 2 or 3", version));
  version_ = int(version);
  SE_ASSIGN(const int64_t tensors, in.count(kLeastTensorBytes, "the number of tensors"));
  SE_ASSIGN(const int64_t values, in.count(kLeastValueBytes, "the number of keys"));
  SE_TRY(parse_values(in, values));
  SE_ASSIGN(const int64_t parts, integer("split.count", 0, INT32_MAX, 1));
  if (parts > 1) {
    return unsupported(format(
        "{}: one part of {} of a split model, expected a whole file: merge the parts first", path(), parts));
  }
  SE_TRY(parse_tensors(in, tensors));
  return place_tensors(in.at());
}

Status Gguf::parse_values(GgufCursor& in, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t start = in.at();
    SE_ASSIGN(const std::string_view key, in.string(format("the name of key {} of {}", i + 1, count)));
    if (key.empty()) return bad(start, format("key {} of {} has no name", i + 1, count));
    const std::string what = "key " + quoted(key);
    const int64_t type_at = in.at();
    SE_ASSIGN(const uint32_t type, in.read<uint32_t>(what));
    if (type > uint32_t(GgufType::kF64)) {
      return bad(type_at, format("{} has type {}, expected 0 to 12", what, type));
    }
    GgufValue value{GgufType(type), GgufType(type), 1, in.at()};
    if (value.type == GgufType::kArray) {
      SE_ASSIGN(value, array_header(*this, in, what));
    }
    SE_TRY(skip_values(*this, in, value.element, value.count, 1, what));
    if (!values_.emplace(key, value).second)
      return bad(start, format("{} is there twice, expected once", what));
  }
  return ok();
}

Status Gguf::parse_tensors(GgufCursor& in, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t start = in.at();
    SE_ASSIGN(const std::string_view name, in.string(format("the name of tensor {} of {}", i + 1, count)));
    if (name.empty()) return bad(start, format("tensor {} of {} has no name", i + 1, count));
    if (!tensor_index_.emplace(name, tensors_.size()).second) {
      return bad(start, format("tensor {} is there twice, expected once", quoted(name)));
    }
    GgufTensor tensor;
    tensor.name = name;
    SE_TRY(parse_tensor(in, tensor));
    tensors_.push_back(std::move(tensor));
  }
  return ok();
}

Status Gguf::parse_tensor(GgufCursor& in, GgufTensor& out) const {
  const std::string what = "tensor " + quoted(out.name);
  const int64_t start = in.at();
  SE_ASSIGN(const uint32_t rank, in.read<uint32_t>(what));
  if (rank < 1 || rank > out.dims.size()) {
    return bad(start, format("{} has {} dimensions, expected 1 to {}", what, rank, out.dims.size()));
  }
  out.rank = int(rank);
  int64_t elements = 1;
  for (size_t d = 0; d < rank; ++d) {
    const int64_t dim_at = in.at();
    SE_ASSIGN(const uint64_t dim, in.read<uint64_t>(what));
    if (dim == 0 || dim > uint64_t(INT64_MAX) || !multiply(elements, int64_t(dim), elements)) {
      return bad(
          dim_at,
          format("{} has {} as dimension {}, expected at least 1 and a product below 2^63", what, dim, d));
    }
    out.dims[d] = int64_t(dim);
  }
  const int64_t type_at = in.at();
  SE_ASSIGN(const uint32_t id, in.read<uint32_t>(what));
  const TensorType* type = std::find_if(
      std::begin(kTensorTypes), std::end(kTensorTypes), [&](const TensorType& t) { return t.id == id; });
  if (type == std::end(kTensorTypes) || !type->dtype) {
    return bad(type_at,
               format("{} has type {} ({}), expected one of {}",
                      what,
                      id,
                      type == std::end(kTensorTypes) ? "unknown" : type->name,
                      known_types()));
  }
  out.dtype = *type->dtype;
  if (out.dims[0] % block_elements(out.dtype) != 0) {
    return bad(type_at,
               format("{} has rows of {} elements, expected whole {} blocks of {}",
                      what,
                      out.dims[0],
                      type->name,
                      block_elements(out.dtype)));
  }
  if (!multiply(elements / block_elements(out.dtype), block_bytes(out.dtype), out.bytes)) {
    return bad(type_at, format("{} has {} elements, expected fewer than 2^63 bytes", what, elements));
  }
  const int64_t offset_at = in.at();
  SE_ASSIGN(const uint64_t offset, in.read<uint64_t>(what));
  if (offset > uint64_t(file_.bytes())) {
    return bad(offset_at,
               format("{} starts at offset {}, but the file has {} bytes", what, offset, file_.bytes()));
  }
  out.offset = int64_t(offset);  // relative to the data until place_tensors
  return ok();
}

// Makes offsets absolute and checks that every tensor lies in the file, and no two on the same bytes.
Status Gguf::place_tensors(int64_t header_end) {
  SE_ASSIGN(const int64_t alignment, integer("general.alignment", kMinAlignment, kMaxAlignment, 32));
  if ((alignment & (alignment - 1)) != 0) {
    return bad_value("general.alignment", format("is {}, expected a power of two", alignment));
  }
  const int64_t data = (header_end + alignment - 1) / alignment * alignment;
  for (GgufTensor& t : tensors_) {
    if (t.offset % alignment != 0) {
      return bad(data + t.offset,
                 format("tensor {} starts at offset {}, expected a multiple of {}",
                        quoted(t.name),
                        t.offset,
                        alignment));
    }
    t.offset += data;
    if (t.bytes > file_.bytes() || t.offset > file_.bytes() - t.bytes) {
      return bad(t.offset,
                 format("tensor {} of {} bytes starts here, but the file has {} bytes: truncated?",
                        quoted(t.name),
                        t.bytes,
                        file_.bytes()));
    }
  }
  return check_overlaps();
}

Status Gguf::check_overlaps() const {
  std::vector<const GgufTensor*> order;
  for (const GgufTensor& t : tensors_) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](const GgufTensor* a, const GgufTensor* b) {
    return a->offset < b->offset;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const int64_t end = order[i - 1]->offset + order[i - 1]->bytes;
    if (order[i]->offset < end) {
      return bad(order[i]->offset,
                 format("tensor {} starts here, but tensor {} ends at byte {}: they overlap",
                        quoted(order[i]->name),
                        quoted(order[i - 1]->name),
                        end));
    }
  }
  return ok();
}

const GgufTensor* Gguf::find_tensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

TensorView Gguf::view(const GgufTensor& tensor) const {
  std::array<int64_t, 4> shape{};
  for (size_t d = 0; d < size_t(tensor.rank); ++d) shape[d] = tensor.dims[size_t(tensor.rank) - 1 - d];
  // The one place where const is dropped: a TensorView has no read-only kind. Writing to weights would fault.
  void* data = const_cast<uint8_t*>(file_.data()) + tensor.offset;
  return TensorView::of(data, tensor.dtype, std::span<const int64_t>(shape.data(), size_t(tensor.rank)));
}

}  // namespace se
