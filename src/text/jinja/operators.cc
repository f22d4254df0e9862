#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "base/fmt.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/format.h"
#include "text/jinja/functions.h"
#include "text/jinja/percent.h"
#include "text/unicode.h"

namespace se::text::jinja {
namespace {

Status no_operator(std::string_view op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->undefined()) return invalid(value->undefined()->why);
  }
  return invalid(format("operator '{}' does not take '{}' and '{}'", op, a.type_name(), b.type_name()));
}

Result<Value> integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return Value(std::pow(double(base), double(exponent)));
  int64_t result = 1;
  bool over = false;
  for (; exponent > 0 && !over; exponent >>= 1) {
    if (exponent & 1) over = __builtin_mul_overflow(result, base, &result);
    if (exponent > 1) over = over || __builtin_mul_overflow(base, base, &base);
  }
  if (over) return invalid("an integer is over 64 bits");
  return Value(result);
}

Result<Value> integer_op(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool over = false;
  if (op == "+") {
    over = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    over = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    over = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    return integer_power(a, b);
  } else {
    if (b == 0) return invalid("division by zero");
    if (op == "/") return Value(double(a) / double(b));
    over = a == INT64_MIN && b == -1;
    if (!over) {  // Python rounds the quotient down; the remainder has the divisor's sign
      const bool adjust = a % b != 0 && (a < 0) != (b < 0);
      result = op == "//" ? a / b - adjust : a % b + (adjust ? b : 0);
    }
  }
  if (over) return invalid("an integer is over 64 bits");
  return Value(result);
}

Result<Value> real_op(std::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") return Value(std::pow(a, b));
  if (b == 0) return invalid("division by zero");
  if (op == "/") return Value(a / b);
  if (op == "//") return Value(std::floor(a / b));
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return Value(rest);
}

Result<Value> repeat(Evaluator& evaluator, const Value& sequence, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (const Marked* text = sequence.text()) {
    int64_t size = 0;
    if (__builtin_mul_overflow(int64_t(text->text.size()), times, &size)) size = INT64_MAX;
    SE_TRY(evaluator.check_size(size));
    Marked out;
    for (int64_t n = 0; size > 0 && n < times; ++n) out.append(*text);
    return Value(std::move(out));
  }
  const std::vector<Value>& items = sequence.list()->items;
  int64_t count = 0;
  if (__builtin_mul_overflow(int64_t(items.size()), times, &count)) return exhausted("a list is too long");
  SE_TRY(evaluator.charge(count));
  std::vector<Value> out;
  for (int64_t n = 0; count > 0 && n < times; ++n) out.insert(out.end(), items.begin(), items.end());
  return Value::list(std::move(out), sequence.list()->tuple);
}

Result<Value> concatenate(Evaluator& evaluator, const Marked& a, const Marked& b) {
  SE_TRY(evaluator.check_size(int64_t(a.text.size() + b.text.size())));
  Marked out = a;
  out.append(b);
  return Value(std::move(out));
}

// Python's slice: start, stop clamped to the length for the sign of step.
struct Range {
  int64_t start, stop, step;
};
Result<Range> slice_range(int64_t length, const Value& start, const Value& stop, const Value& step) {
  Range range = {0, 0, 1};
  if (!step.is_none() && !step.to_integer(range.step)) return invalid("the step of a slice is no integer");
  if (range.step == 0) return invalid("the step of a slice is 0");
  const int64_t low = range.step > 0 ? 0 : -1, high = range.step > 0 ? length : length - 1;
  const auto bound = [&](const Value& value, int64_t fallback, int64_t& out) {
    if (value.is_none()) return out = fallback, true;
    if (!value.to_integer(out)) return false;
    if (out < 0) out += length;
    out = std::clamp(out, low, high);
    return true;
  };
  if (!bound(start, range.step > 0 ? low : high, range.start) ||
      !bound(stop, range.step > 0 ? high : low, range.stop)) {
    return invalid("a bound of a slice is no integer");
  }
  return range;
}

template <typename F>
void for_each_index(const Range& range, int64_t length, F f) {
  for (int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop;) {
    f(size_t(i));
    // The clamp keeps i + step in range of int64_t whatever the step is.
    i += std::clamp(range.step, -length - 1, length + 1);
  }
}

}  // namespace

Result<Value> binary(Evaluator& evaluator, std::string_view op, const Value& a, const Value& b) {
  if (op == "~") return concatenate(evaluator, to_text(a), to_text(b));
  if (op == "%" && a.text()) return percent(evaluator, *a.text(), b);
  int64_t i = 0, j = 0;
  if (a.to_integer(i) && b.to_integer(j)) return integer_op(op, i, j);
  double x = 0, y = 0;
  if (a.to_real(x) && b.to_real(y)) return real_op(op, x, y);
  if (op == "+" && a.text() && b.text()) return concatenate(evaluator, *a.text(), *b.text());
  if (op == "+" && a.list() && b.list() && a.list()->tuple == b.list()->tuple) {
    std::vector<Value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    SE_TRY(evaluator.charge(int64_t(items.size())));
    return Value::list(std::move(items), a.list()->tuple);
  }
  if (op == "*" && (a.text() || a.list()) && b.to_integer(j)) return repeat(evaluator, a, j);
  if (op == "*" && (b.text() || b.list()) && a.to_integer(i)) return repeat(evaluator, b, i);
  return no_operator(op, a, b);
}

Result<Value> unary(std::string_view op, const Value& a) {
  int64_t i = 0;
  if (a.to_integer(i)) return op == "-" ? integer_op("-", 0, i) : Value(i);
  if (const double* d = a.real()) return Value(op == "-" ? -*d : *d);
  if (a.undefined()) return invalid(a.undefined()->why);
  return invalid(format("operator '{}' does not take '{}'", op, a.type_name()));
}

Result<bool> contains(const Value& container, const Value& item) {
  if (container.is_undefined()) return false;
  if (const Marked* text = container.text()) {
    if (!item.text()) return invalid(format("'in' a string wants a string, found '{}'", item.type_name()));
    return text->text.find(item.text()->text) != std::string::npos;
  }
  if (const List* list = container.list()) {
    return std::any_of(
        list->items.begin(), list->items.end(), [&](const Value& v) { return equal(v, item); });
  }
  if (const Dict* dict = container.dict(); dict && dict->kind == Dict::Kind::kDict) {
    return item.text() && dict->find(item.text()->text) != nullptr;
  }
  return invalid(format("'in' wants a string, list or dict, found '{}'", container.type_name()));
}

std::vector<size_t> character_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t at = 0; at < text.size(); at += code_point_at(text, at).size) offsets.push_back(at);
  offsets.push_back(text.size());
  return offsets;
}

Result<Value> item(const Value& object, const Value& key) {
  if (object.undefined()) return invalid(object.undefined()->why);
  if (key.text() && (object.dict() || !object.list())) {
    const Dict* dict = object.dict();
    if (const Value* found = dict ? dict->find(key.text()->text) : nullptr) return *found;
    return attribute(object, key.text()->text);
  }
  int64_t index = 0;
  if (!key.to_integer(index)) {
    return Value(Undefined{format("'{}' has no item '{}'", object.type_name(), to_text(key).text)});
  }
  const Undefined missing = {format("'{}' has no item {}", object.type_name(), index)};
  if (const List* list = object.list()) {
    const int64_t length = int64_t(list->items.size());
    if (index < 0) index += length;
    return index < 0 || index >= length ? Value(missing) : list->items[size_t(index)];
  }
  if (const Marked* text = object.text()) {
    const std::vector<size_t> offsets = character_offsets(text->text);
    const int64_t length = int64_t(offsets.size()) - 1;
    if (index < 0) index += length;
    if (index < 0 || index >= length) return Value(missing);
    return Value(text->part(offsets[size_t(index)], offsets[size_t(index) + 1]));
  }
  return Value(missing);
}

Result<Value> attribute(const Value& object, std::string_view name) {
  if (object.undefined()) return invalid(object.undefined()->why);
  const Dict* dict = object.dict();
  if (const Method method = find_method(object, name)) {
    return Value(Callable{std::string(name), [object, method](Evaluator& evaluator, const Args& args) {
                            return method(evaluator, object, args);
                          }});
  }
  if (const Value* found = dict ? dict->find(name) : nullptr) return *found;
  return Value(Undefined{format("'{}' has no attribute '{}'", object.type_name(), name)});
}

Result<Value> slice(
    Evaluator& evaluator, const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (const List* list = object.list()) {
    const int64_t length = int64_t(list->items.size());
    SE_ASSIGN(const Range range, slice_range(length, start, stop, step));
    std::vector<Value> items;
    for_each_index(range, length, [&](size_t i) { items.push_back(list->items[i]); });
    SE_TRY(evaluator.charge(int64_t(items.size())));
    return Value::list(std::move(items), list->tuple);
  }
  if (const Marked* text = object.text()) {
    const std::vector<size_t> offsets = character_offsets(text->text);
    const int64_t length = int64_t(offsets.size()) - 1;
    SE_ASSIGN(const Range range, slice_range(length, start, stop, step));
    if (range.step == 1) {
      const int64_t end = std::max(range.start, range.stop);
      return Value(text->part(offsets[size_t(range.start)], offsets[size_t(end)]));
    }
    Marked out;
    for_each_index(range, length, [&](size_t i) { out.append(text->part(offsets[i], offsets[i + 1])); });
    return Value(std::move(out));
  }
  if (object.undefined()) return invalid(object.undefined()->why);
  return invalid(format("a '{}' cannot be sliced", object.type_name()));
}

}  // namespace se::text::jinja
