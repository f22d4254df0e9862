#include "text/jinja/json.h"

#include <nlohmann/json.hpp>

#include "base/fmt.h"

namespace se::text::jinja {
namespace {

using Json = nlohmann::ordered_json;

Marked string_of(const std::string& text, bool mark) { return mark ? Marked::all(text) : Marked(text); }

Result<Value> convert(const Json& json, bool mark, int depth) {
  if (depth > kMaxNesting) return invalid(format("values are nested deeper than {}", kMaxNesting));
  switch (json.type()) {
    case Json::value_t::null:
      return Value(None{});
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const uint64_t value = json.get<uint64_t>();
      if (value > uint64_t(INT64_MAX)) return invalid(format("the number {} is over 2^63 - 1", value));
      return Value(int64_t(value));
    }
    case Json::value_t::number_float:
      return Value(json.get<double>());
    case Json::value_t::string:
      return Value(string_of(json.get_ref<const std::string&>(), mark));
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) {
        SE_ASSIGN(Value value, convert(item, mark, depth + 1));
        items.push_back(std::move(value));
      }
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        SE_ASSIGN(Value value, convert(item, mark, depth + 1));
        dict.items.emplace_back(string_of(key, mark), std::move(value));
      }
      return Value::dict(std::move(dict));
    }
    default:
      return invalid("not a JSON value");
  }
}

}  // namespace

Result<Value> from_json(std::string_view json, bool mark, std::string_view what) {
  try {  // a door: the library reports errors by exceptions
    const Json parsed = Json::parse(json);
    Result<Value> value = convert(parsed, mark, 0);
    return value.ok() ? std::move(value) : Result<Value>(value.status().in(std::string(what)));
  } catch (const std::exception& error) {
    return invalid(format("{}: {}", what, error.what()));
  }
}

}  // namespace se::text::jinja
