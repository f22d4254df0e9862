#include "text/jinja/value.h"

#include <algorithm>

#include "base/fmt.h"

namespace se::text::jinja {
namespace {

Result<int> depth_with(const Value& item) {
  if (item.dict() && item.dict()->kind != Dict::Kind::kDict) {
    return unsupported("a namespace or loop object cannot be put into a list, dict or namespace");
  }
  const int depth = item.depth() + 1;
  if (depth > kMaxNesting) return invalid(format("values are nested deeper than {}", kMaxNesting));
  return depth;
}

template <typename T>
int three_way(const T& a, const T& b) {
  return a < b ? -1 : b < a ? 1 : 0;
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name.text == key) return &value;
  }
  return nullptr;
}

void Dict::set(Marked key, Value value) {
  for (auto& [name, old] : items) {
    if (name.text == key.text) {
      old = std::move(value);
      return;
    }
  }
  items.emplace_back(std::move(key), std::move(value));
}

Result<Value> Value::list(std::vector<Value> items, bool tuple) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) {
    SE_ASSIGN(const int depth, depth_with(item));
    list->depth = std::max(list->depth, depth);
  }
  list->items = std::move(items);
  list->tuple = tuple;
  Value value;
  value.data_ = ListPtr(std::move(list));
  return value;
}

Result<Value> Value::dict(Dict dict) {
  for (const auto& item : dict.items) {
    SE_ASSIGN(const int depth, depth_with(item.second));
    dict.depth = std::max(dict.depth, depth);
  }
  Value value;
  value.data_ = std::make_shared<Dict>(std::move(dict));
  return value;
}

bool Value::to_integer(int64_t& out) const {
  if (const bool* b = as_bool()) return out = *b, true;
  if (const int64_t* i = integer()) return out = *i, true;
  return false;
}

bool Value::to_real(double& out) const {
  int64_t i = 0;
  if (to_integer(i)) return out = double(i), true;
  if (const double* d = real()) return out = *d, true;
  return false;
}

bool Value::truthy() const {
  double number = 0;
  if (to_real(number)) return number != 0;
  if (text()) return !text()->text.empty();
  if (list()) return !list()->items.empty();
  if (dict()) return dict()->kind != Dict::Kind::kDict || !dict()->items.empty();
  return callable() != nullptr;
}

const char* Value::type_name() const {
  static constexpr const char* kNames[] = {
      "Undefined", "NoneType", "bool", "int", "float", "str", "list", "dict", "function"};
  if (list() && list()->tuple) return "tuple";
  if (dict() && dict()->kind == Dict::Kind::kNamespace) return "Namespace";
  if (dict() && dict()->kind == Dict::Kind::kLoop) return "LoopContext";
  return kNames[data_.index()];
}

int Value::depth() const { return list() ? list()->depth : dict() ? dict()->depth : 0; }

bool Value::same_as(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (text()) return text() == other.text();
  if (list()) return list() == other.list();
  if (dict()) return dict() == other.dict();
  if (callable()) return callable() == other.callable();
  return equal(*this, other);
}

bool equal(const Value& a, const Value& b) {
  int64_t i = 0, j = 0;
  if (a.to_integer(i) && b.to_integer(j)) return i == j;
  double x = 0, y = 0;
  if (a.to_real(x) && b.to_real(y)) return x == y;
  if (a.text() && b.text()) return a.text()->text == b.text()->text;
  if (a.list() && b.list()) {
    return a.list()->tuple == b.list()->tuple && std::equal(a.list()->items.begin(),
                                                            a.list()->items.end(),
                                                            b.list()->items.begin(),
                                                            b.list()->items.end(),
                                                            equal);
  }
  if (a.dict() && b.dict()) {
    if (a.dict() == b.dict()) return true;
    if (a.dict()->kind != Dict::Kind::kDict || b.dict()->kind != Dict::Kind::kDict) return false;
    if (a.dict()->items.size() != b.dict()->items.size()) return false;
    for (const auto& [key, value] : a.dict()->items) {
      const Value* other = b.dict()->find(key.text);
      if (other == nullptr || !equal(value, *other)) return false;
    }
    return true;
  }
  if (a.callable() || b.callable()) return a.callable() == b.callable();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

Result<int> compare(const Value& a, const Value& b) {
  int64_t i = 0, j = 0;
  if (a.to_integer(i) && b.to_integer(j)) return three_way(i, j);
  double x = 0, y = 0;
  if (a.to_real(x) && b.to_real(y)) return three_way(x, y);
  if (a.text() && b.text()) return three_way(a.text()->text, b.text()->text);
  if (a.list() && b.list()) {
    const auto &left = a.list()->items, &right = b.list()->items;
    for (size_t n = 0; n < std::min(left.size(), right.size()); ++n) {
      if (!equal(left[n], right[n])) return compare(left[n], right[n]);
    }
    return three_way(left.size(), right.size());
  }
  for (const Value* value : {&a, &b}) {
    if (value->undefined()) return invalid(value->undefined()->why);
  }
  return invalid(format("cannot order '{}' and '{}'", a.type_name(), b.type_name()));
}

}  // namespace se::text::jinja
