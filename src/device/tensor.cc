#include "device/tensor.h"

namespace se {
namespace {
struct TypeInfo {
  const char* name;
  int elements, bytes;
};
constexpr TypeInfo kTypes[] = {{"f32", 1, 4},      {"f16", 1, 2},      {"bf16", 1, 2},     {"f8e4m3", 1, 1},
                               {"f8e5m2", 1, 1},   {"i8", 1, 1},       {"u8", 1, 1},       {"i32", 1, 4},
                               {"i64", 1, 8},      {"q4_0", 32, 18},   {"q4_1", 32, 20},   {"q5_0", 32, 22},
                               {"q5_1", 32, 24},   {"q8_0", 32, 34},   {"q2_K", 256, 84},  {"q3_K", 256, 110},
                               {"q4_K", 256, 144}, {"q5_K", 256, 176}, {"q6_K", 256, 210}, {"f8_32", 32, 36}};
}  // namespace

const char* to_string(DType dtype) { return kTypes[size_t(dtype)].name; }
int block_elements(DType dtype) { return kTypes[size_t(dtype)].elements; }
int block_bytes(DType dtype) { return kTypes[size_t(dtype)].bytes; }

TensorView TensorView::of(void* data, DType dtype, std::span<const int64_t> shape, DeviceKind device) {
  SE_CHECK(shape.size() <= size_t(kMaxRank), "rank {} > {}", shape.size(), kMaxRank);
  TensorView t;
  t.data = data, t.dtype = dtype, t.device = device, t.rank = int(shape.size());
  int64_t step = block_bytes(dtype);
  for (int i = t.rank - 1; i >= 0; --i) {
    const size_t s = size_t(i);
    t.shape[s] = shape[s];
    t.stride[s] = step;
    step = i == t.rank - 1 ? bytes_of(dtype, shape[s]) : step * shape[s];
  }
  return t;
}

bool TensorView::contiguous() const {
  const TensorView dense = of(data, dtype, std::span(shape.data(), size_t(rank)), device);
  for (int i = 0; i < rank; ++i) {
    if (shape[size_t(i)] > 1 && stride[size_t(i)] != dense.stride[size_t(i)]) return false;
  }
  return true;
}

TensorView TensorView::slice(int64_t begin, int64_t end) const {
  SE_DCHECK(rank > 0 && begin >= 0 && begin <= end && end <= shape[0], "{}..{} of {}", begin, end, shape[0]);
  TensorView t = *this;
  t.data = static_cast<char*>(data) + begin * stride[0];
  t.shape[0] = end - begin;
  return t;
}

TensorView TensorView::index(int64_t i) const {
  TensorView t = slice(i, i + 1);
  t.rank = rank - 1;
  for (int d = 0; d < t.rank; ++d)
    t.shape[size_t(d)] = shape[size_t(d) + 1], t.stride[size_t(d)] = stride[size_t(d) + 1];
  return t;
}

std::string to_string(const TensorView& t) {
  std::string s = to_string(t.dtype);
  s += '[';
  for (int i = 0; i < t.rank; ++i) s += format("{}{}", i ? ", " : "", t.shape[size_t(i)]);
  return s + ']';
}

}  // namespace se
