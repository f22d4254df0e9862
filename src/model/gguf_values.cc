// Typed access to the metadata of a GGUF file. Offsets were checked at open; reads stay bounds-checked.
#include <cstring>

#include "base/fmt.h"
#include "base/quoted.h"
#include "model/gguf.h"
#include "model/gguf_cursor.h"

namespace se {
namespace {

struct TypeInfo {
  const char* name;
  int64_t bytes;
};
constexpr TypeInfo kTypes[] = {{"u8", 1},
                               {"i8", 1},
                               {"u16", 2},
                               {"i16", 2},
                               {"u32", 4},
                               {"i32", 4},
                               {"f32", 4},
                               {"bool", 1},
                               {"string", 0},
                               {"array", 0},
                               {"u64", 8},
                               {"i64", 8},
                               {"f64", 8}};

template <typename T>
T load(const MappedFile& file, int64_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof value);
  return value;
}

// None: not an integer type, or a u64 that no i64 holds.
std::optional<int64_t> load_integer(const MappedFile& file, GgufType type, int64_t offset) {
  switch (type) {
    case GgufType::kU8:
      return load<uint8_t>(file, offset);
    case GgufType::kI8:
      return load<int8_t>(file, offset);
    case GgufType::kU16:
      return load<uint16_t>(file, offset);
    case GgufType::kI16:
      return load<int16_t>(file, offset);
    case GgufType::kU32:
      return load<uint32_t>(file, offset);
    case GgufType::kI32:
      return load<int32_t>(file, offset);
    case GgufType::kI64:
      return load<int64_t>(file, offset);
    case GgufType::kU64: {
      const uint64_t value = load<uint64_t>(file, offset);
      if (value > uint64_t(INT64_MAX)) return {};
      return int64_t(value);
    }
    default:
      return {};
  }
}

std::string kind(const GgufValue& value) {
  if (value.type != GgufType::kArray) return to_string(value.type);
  return format("an array of {} {}", value.count, to_string(value.element));
}

Status missing(const Gguf& gguf, std::string_view key, const char* expected) {
  return not_found(format("{}: key {} is missing, expected {}", gguf.path(), quoted(key), expected));
}

}  // namespace

const char* to_string(GgufType type) { return kTypes[size_t(type)].name; }
int64_t value_bytes(GgufType type) { return kTypes[size_t(type)].bytes; }

const GgufValue* Gguf::find(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

Status Gguf::bad_value(std::string_view key, const std::string& text) const {
  const GgufValue* value = find(key);
  return bad(value != nullptr ? value->offset : 0, format("key {} {}", quoted(key), text));
}

Result<int64_t> Gguf::integer(std::string_view key,
                              int64_t min,
                              int64_t max,
                              std::optional<int64_t> fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return fallback ? Result<int64_t>(*fallback) : missing(*this, key, "an integer");
  const std::optional<int64_t> found = load_integer(file_, value->type, value->offset);
  if (!found)
    return bad_value(key, format("is {}, expected an integer from {} to {}", kind(*value), min, max));
  if (*found < min || *found > max)
    return bad_value(key, format("is {}, expected {} to {}", *found, min, max));
  return *found;
}

Result<double> Gguf::number(std::string_view key,
                            double min,
                            double max,
                            std::optional<double> fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return fallback ? Result<double>(*fallback) : missing(*this, key, "a number");
  double found = 0;
  if (value->type == GgufType::kF32) {
    found = double(load<float>(file_, value->offset));
  } else if (value->type == GgufType::kF64) {
    found = load<double>(file_, value->offset);
  } else if (const auto integral = load_integer(file_, value->type, value->offset)) {
    found = double(*integral);
  } else {
    return bad_value(key, format("is {}, expected a number from {} to {}", kind(*value), min, max));
  }
  if (!(found >= min && found <= max)) {  // NaN too
    return bad_value(key, format("is {}, expected {} to {}", found, min, max));
  }
  return found;
}

Result<bool> Gguf::boolean(std::string_view key, std::optional<bool> fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return fallback ? Result<bool>(*fallback) : missing(*this, key, "a bool");
  if (value->type != GgufType::kBool) return bad_value(key, format("is {}, expected a bool", kind(*value)));
  return load<uint8_t>(file_, value->offset) != 0;
}

Result<std::string> Gguf::string(std::string_view key, std::optional<std::string> fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return fallback ? Result<std::string>(*fallback) : missing(*this, key, "a string");
  if (value->type != GgufType::kString)
    return bad_value(key, format("is {}, expected a string", kind(*value)));
  SE_ASSIGN(const std::string_view text, GgufCursor(*this, value->offset).string(key));
  return std::string(text);
}

Result<std::vector<std::string>> Gguf::strings(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return missing(*this, key, "an array of strings");
  if (value->type != GgufType::kArray || value->element != GgufType::kString) {
    return bad_value(key, format("is {}, expected an array of strings", kind(*value)));
  }
  std::vector<std::string> out;
  out.reserve(size_t(value->count));
  GgufCursor in(*this, value->offset);
  for (int64_t i = 0; i < value->count; ++i) {
    SE_ASSIGN(const std::string_view text, in.string(key));
    out.emplace_back(text);
  }
  return out;
}

Result<std::vector<int32_t>> Gguf::ints(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return missing(*this, key, "an array of integers");
  if (value->type != GgufType::kArray)
    return bad_value(key, format("is {}, expected an array", kind(*value)));
  std::vector<int32_t> out;
  for (int64_t i = 0; i < value->count; ++i) {
    const int64_t at = value->offset + i * value_bytes(value->element);
    const auto found = value->element == GgufType::kBool
                           ? std::optional<int64_t>(load<uint8_t>(file_, at) != 0)
                           : load_integer(file_, value->element, at);
    if (!found || *found < INT32_MIN || *found > INT32_MAX) {
      return bad_value(key, format("is {}, expected 32-bit integers", kind(*value)));
    }
    out.push_back(int32_t(*found));
  }
  return out;
}

Result<std::vector<float>> Gguf::floats(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return missing(*this, key, "an array of f32");
  if (value->type != GgufType::kArray || value->element != GgufType::kF32) {
    return bad_value(key, format("is {}, expected an array of f32", kind(*value)));
  }
  std::vector<float> out(static_cast<size_t>(value->count));
  if (!out.empty()) std::memcpy(out.data(), file_.data() + value->offset, out.size() * sizeof(float));
  return out;
}

Result<int64_t> Gguf::uniform_integer(std::string_view key,
                                      int64_t min,
                                      int64_t max,
                                      std::optional<int64_t> fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr || value->type != GgufType::kArray) return integer(key, min, max, fallback);
  SE_ASSIGN(const std::vector<int32_t> per_layer, ints(key));
  if (per_layer.empty()) return bad_value(key, "is an empty array, expected an integer per layer");
  for (const int32_t v : per_layer) {
    if (v != per_layer[0]) {
      const Status differs =
          bad_value(key, format("is {} in one layer and {} in another, expected one value", per_layer[0], v));
      return unsupported(differs.message());
    }
  }
  if (per_layer[0] < min || per_layer[0] > max) {
    return bad_value(key, format("is {}, expected {} to {}", per_layer[0], min, max));
  }
  return int64_t(per_layer[0]);
}

}  // namespace se
