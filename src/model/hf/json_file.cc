#include "model/hf/json_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fmt.h"
#include "base/quoted.h"
#include "model/gguf.h"

namespace se {
namespace {

using nlohmann::json;

constexpr int kMaxNesting = 32;

// The byte at which brackets are nested deeper than allowed, or -1. Strings are stepped over.
int64_t too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxNesting) return int64_t(i);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return -1;
}

// The document, and a key that one of its objects has twice (the library keeps the last in silence).
struct Parsed {
  json value;
  std::optional<std::string> twice;
};

Parsed parse(const std::string& text) {
  Parsed out;
  std::vector<std::set<std::string>> keys;
  const auto see = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second && !out.twice) out.twice = key;
    }
    return true;
  };
  out.value = json::parse(text, see);
  return out;
}

}  // namespace

Result<std::string> read_text(const std::string& path, int64_t max_bytes) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    std::string text = format("{}: cannot open: {}", path, std::strerror(errno));
    return errno == ENOENT ? not_found(std::move(text)) : io_error(std::move(text));
  }
  if (!S_ISREG(info.st_mode)) return io_error(format("{}: is not a file, a JSON file was expected", path));
  if (info.st_size > max_bytes)
    return invalid(format("{}: has {} bytes, expected at most {}", path, int64_t(info.st_size), max_bytes));
  std::FILE* f = std::fopen(path.c_str(), "rb");
  if (f == nullptr) return io_error(format("{}: cannot open: {}", path, std::strerror(errno)));
  std::string text(size_t(info.st_size), '\0');
  text.resize(std::fread(text.data(), 1, text.size(), f));
  const bool failed = std::ferror(f) != 0;
  std::fclose(f);
  return failed ? Result<std::string>(io_error(format("{}: cannot read", path))) : text;
}

Result<JsonObject> JsonObject::open(const std::string& path, int64_t max_bytes) {
  SE_ASSIGN(const std::string text, read_text(path, max_bytes));
  if (const int64_t at = too_deep(text); at >= 0)
    return invalid(format("{}: byte {}: brackets nest deeper than {}", path, at, kMaxNesting));
  JsonObject out;
  out.path_ = path;
  try {
    Parsed parsed = parse(text);
    if (parsed.twice)
      return invalid(format("{}: key {} is there twice, expected once", path, se::quoted(*parsed.twice)));
    out.file_ = std::make_shared<const json>(std::move(parsed.value));
  } catch (const json::parse_error& e) {
    return invalid(format("{}: byte {}: not JSON here", path, e.byte));
  } catch (const json::exception&) {  // a number out of range
    return invalid(format("{}: not JSON: a number is out of range", path));
  }
  out.at_ = out.file_.get();
  if (!out.at_->is_object())
    return invalid(format("{}: holds {}, expected a JSON object", path, out.at_->type_name()));
  return out;
}

const json* JsonObject::find(std::string_view key) const {
  const auto it = at_->find(key);
  return it == at_->end() || it->is_null() ? nullptr : &*it;
}

bool JsonObject::has(std::string_view key) const { return find(key) != nullptr; }

bool JsonObject::is_object(std::string_view key) const {
  const json* value = find(key);
  return value != nullptr && value->is_object();
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : at_->items()) out.push_back(key);
  return out;
}

std::string JsonObject::show(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return "missing";
  if (value->is_string()) return se::quoted(value->get_ref<const std::string&>());
  if (value->is_structured())
    return format("{} of {}", value->is_array() ? "an array" : "an object", value->size());
  return value->dump();
}

Status JsonObject::bad(std::string_view key, const std::string& text) const {
  return invalid(format("{}: {}{} {}", path_, outer_, se::quoted(key), text));
}

Status JsonObject::wrong(std::string_view key, const std::string& expected) const {
  const Status status = bad(key, format("is {}, expected {}", show(key), expected));
  return has(key) ? status : not_found(status.message());
}

Result<int64_t> JsonObject::integer(std::string_view key,
                                    int64_t min,
                                    int64_t max,
                                    std::optional<int64_t> fallback) const {
  const json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_number_integer()) {
    const bool huge = value->is_number_unsigned() && value->get<uint64_t>() > uint64_t(INT64_MAX);
    if (const int64_t n = huge ? INT64_MAX : value->get<int64_t>(); !huge && n >= min && n <= max) return n;
  }
  return wrong(key, format("an integer from {} to {}", min, max));
}

Result<double> JsonObject::number(std::string_view key,
                                  double min,
                                  double max,
                                  std::optional<double> fallback) const {
  const json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_number()) {
    if (const double x = value->get<double>(); x >= min && x <= max) return x;
  }
  return wrong(key, format("a number from {} to {}", min, max));
}

Result<bool> JsonObject::boolean(std::string_view key, std::optional<bool> fallback) const {
  const json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_boolean()) return value->get<bool>();
  return wrong(key, "true or false");
}

Result<std::string> JsonObject::string(std::string_view key, std::optional<std::string> fallback) const {
  const json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  return wrong(key, "a string");
}

Result<std::vector<int64_t>> JsonObject::integers(std::string_view key, int64_t min, int64_t max) const {
  const json* value = find(key);
  std::vector<int64_t> out;
  if (value == nullptr) return out;
  const std::string expected = format("integers from {} to {}", min, max);
  const auto take = [&](const json& element) {
    if (!element.is_number_integer()) return false;
    if (element.is_number_unsigned() && element.get<uint64_t>() > uint64_t(INT64_MAX)) return false;
    out.push_back(element.get<int64_t>());
    return out.back() >= min && out.back() <= max;
  };
  if (!value->is_array()) return take(*value) ? Result(std::move(out)) : wrong(key, expected);
  for (const json& element : *value) {
    if (!take(element)) return wrong(key, expected);
  }
  return out;
}

Result<std::vector<std::string>> JsonObject::strings(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr || !value->is_array()) return wrong(key, "an array of strings");
  std::vector<std::string> out;
  for (const json& element : *value) {
    if (!element.is_string()) return wrong(key, "an array of strings");
    out.push_back(element.get<std::string>());
  }
  return out;
}

Result<JsonObject> JsonObject::object(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr || !value->is_object()) return wrong(key, "an object");
  JsonObject out = *this;
  out.outer_ += std::string(key) + ".";
  out.at_ = value;
  return out;
}

}  // namespace se
