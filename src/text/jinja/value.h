// text/jinja/value.h -- the values of a template: Python's, as far as chat templates use them.
// Lists and dicts never change once made; only namespaces do, and they cannot be put into another value,
// so there are no cycles.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "text/jinja/marked.h"

namespace se::text::jinja {

class Evaluator;
class Value;

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Undefined {
  std::string why;  // "'x' is undefined"
};
struct None {};

struct List {
  std::vector<Value> items;
  bool tuple = false;  // printed with round brackets
  int depth = 1;       // containers inside each other, see kMaxNesting
};

struct Dict {
  enum class Kind { kDict, kNamespace, kLoop };  // the last two have attributes but no methods
  Kind kind = Kind::kDict;
  std::vector<std::pair<Marked, Value>> items;  // in the order of insertion
  int depth = 1;

  const Value* find(std::string_view key) const;
  void set(Marked key, Value value);
};

struct Callable {
  std::string name;
  std::function<Result<Value>(Evaluator&, const Args&)> call;
};

// Containers nested deeper are refused: bounds the recursion of printing, comparing and freeing.
inline constexpr int kMaxNesting = 200;

class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(Undefined u) : data_(std::move(u)) {}                                     // NOLINT
  Value(None n) : data_(n) {}                                                     // NOLINT
  Value(bool b) : data_(b) {}                                                     // NOLINT
  Value(int64_t i) : data_(i) {}                                                  // NOLINT
  Value(double d) : data_(d) {}                                                   // NOLINT
  Value(Marked text) : data_(std::make_shared<const Marked>(std::move(text))) {}  // NOLINT
  Value(std::string text) : Value(Marked(std::move(text))) {}                     // NOLINT
  Value(const char* text) : Value(Marked(text)) {}                                // NOLINT
  Value(Callable c) : data_(std::make_shared<const Callable>(std::move(c))) {}    // NOLINT
  // Fails when the nesting is too deep or an item is a namespace.
  static Result<Value> list(std::vector<Value> items, bool tuple = false);
  static Result<Value> dict(Dict dict);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  // Null when the value is of another kind. as_int: integers and booleans, as in Python.
  const bool* as_bool() const { return std::get_if<bool>(&data_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const Marked* text() const { return get<TextPtr>(); }
  const List* list() const { return get<ListPtr>(); }
  Dict* dict() const { return get<DictPtr>(); }
  const Callable* callable() const { return get<CallablePtr>(); }
  const Undefined* undefined() const { return std::get_if<Undefined>(&data_); }
  // Integers and booleans; false when the value is neither.
  bool to_integer(int64_t& out) const;
  // Integers, booleans and reals.
  bool to_real(double& out) const;
  bool is_number() const { return as_bool() || integer() || real(); }

  bool truthy() const;
  // Python's name of the type, for messages: "str", "dict", "NoneType", ...
  const char* type_name() const;
  int depth() const;
  // The same container, function or string object.
  bool same_as(const Value& other) const;

 private:
  // Shared: Python's values are references, copied into scopes, loops and arguments all the time.
  using TextPtr = std::shared_ptr<const Marked>;
  using ListPtr = std::shared_ptr<const List>;
  using DictPtr = std::shared_ptr<Dict>;
  using CallablePtr = std::shared_ptr<const Callable>;
  template <typename P>
  typename P::element_type* get() const {
    const P* pointer = std::get_if<P>(&data_);
    return pointer ? pointer->get() : nullptr;
  }
  std::variant<Undefined, None, bool, int64_t, double, TextPtr, ListPtr, DictPtr, CallablePtr> data_;
};

// Python's ==: numbers by value, strings by bytes, containers by content.
bool equal(const Value& a, const Value& b);

// Negative, zero or positive; fails for types Python cannot order.
Result<int> compare(const Value& a, const Value& b);

}  // namespace se::text::jinja
