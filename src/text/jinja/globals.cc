#include <ctime>

#include "base/fmt.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/format.h"
#include "text/jinja/functions.h"

namespace se::text::jinja {
namespace {

Result<Value> raise_exception(Evaluator&, const Args& args) {
  SE_ASSIGN(const auto bound, bind("raise_exception", args, {"message"}));
  return invalid(bound[0] ? to_text(*bound[0]).text : "raise_exception");
}

Result<Value> range(Evaluator& evaluator, const Args& args) {
  SE_ASSIGN(const auto bound, bind("range", args, {"start", "stop", "step"}));
  if (!bound[0]) return invalid("range: wanted 1 to 3 integers, found none");
  int64_t start = 0, stop = 0, step = 1;
  SE_ASSIGN(stop, want_integer("range", *bound[0]));
  if (bound[1]) {
    start = stop;
    SE_ASSIGN(stop, want_integer("range", *bound[1]));
  }
  if (bound[2]) {
    SE_ASSIGN(step, want_integer("range", *bound[2]));
  }
  if (step == 0) return invalid("range: the step is 0");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    SE_TRY(evaluator.charge());
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(std::move(items));
}

Result<Value> make_dict(const Args& args, std::string_view callee, Dict::Kind kind) {
  Dict dict;
  for (const Value& value : args.positional) {
    if (!value.dict()) return invalid(format("{}: wanted a dict, found '{}'", callee, value.type_name()));
    for (const auto& [key, entry] : value.dict()->items) dict.set(key, entry);
  }
  for (const auto& [name, value] : args.named) dict.set(name, value);
  SE_ASSIGN(Value value, Value::dict(std::move(dict)));
  value.dict()->kind = kind;
  return value;
}

Result<Value> make_namespace(Evaluator&, const Args& args) {
  return make_dict(args, "namespace", Dict::Kind::kNamespace);
}
Result<Value> dict(Evaluator&, const Args& args) { return make_dict(args, "dict", Dict::Kind::kDict); }

Result<Value> strftime_now(Evaluator& evaluator, const Args& args) {
  SE_ASSIGN(const auto bound, bind("strftime_now", args, {"format"}));
  if (!bound[0]) return invalid("strftime_now: wanted a format");
  SE_ASSIGN(const Marked* format_text, want_text("strftime_now", *bound[0]));
  const std::time_t now = evaluator.now();
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[512];
  // A space in front tells an empty result from one that does not fit.
  const size_t size = std::strftime(buffer, sizeof buffer, (" " + format_text->text).c_str(), &local);
  if (size == 0)
    return invalid(format("strftime_now: the result is longer than {} bytes", sizeof buffer - 2));
  return Value(std::string(buffer + 1, size - 1));
}

constexpr Named<Function> kFunctions[] = {{"raise_exception", raise_exception},
                                          {"range", range},
                                          {"namespace", make_namespace},
                                          {"dict", dict},
                                          {"strftime_now", strftime_now}};

}  // namespace

std::span<const Named<Function>> global_functions() { return kFunctions; }

}  // namespace se::text::jinja
