#include "base/fmt.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/format.h"
#include "text/jinja/functions.h"
#include "text/jinja/operators.h"
#include "text/jinja/string_case.h"

namespace se::text::jinja {
namespace {

using Check = bool (*)(const Value&);

// A test without arguments.
template <Check check>
Result<bool> plain(Evaluator&, const Value& self, const Args& args) {
  SE_TRY(bind("this test", args, {}).status());
  return check(self);
}

bool is_mapping(const Value& v) { return v.dict() && v.dict()->kind == Dict::Kind::kDict; }
bool is_iterable(const Value& v) { return v.list() || is_mapping(v) || v.text() || v.is_undefined(); }

// A test with one argument.
Result<const Value*> operand(std::string_view name, const Args& args) {
  SE_ASSIGN(const auto bound, bind(format("test '{}'", name), args, {"other"}));
  if (!bound[0]) return invalid(format("test '{}' wants an argument", name));
  return bound[0];
}

Result<bool> equal_to(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const Value* other, operand("equalto", args));
  return equal(self, *other);
}
Result<bool> not_equal(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const Value* other, operand("ne", args));
  return !equal(self, *other);
}
template <int kSign, bool kOrEqual>
Result<bool> ordered(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const Value* other, operand("of order", args));
  SE_ASSIGN(const int order, compare(self, *other));
  return order == 0 ? kOrEqual : (order > 0) == (kSign > 0);
}
Result<bool> in(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const Value* other, operand("in", args));
  return contains(*other, self);
}
Result<bool> same_as(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const Value* other, operand("sameas", args));
  return self.same_as(*other);
}
Result<bool> divisible_by(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const Value* other, operand("divisibleby", args));
  SE_ASSIGN(const Value rest, binary(evaluator, "%", self, *other));
  return !rest.truthy();
}
template <int kRest>
Result<bool> parity(Evaluator& evaluator, const Value& self, const Args&) {
  SE_ASSIGN(const Value rest, binary(evaluator, "%", self, Value(int64_t(2))));
  return equal(rest, Value(int64_t(kRest)));
}
template <bool kUpper>
Result<bool> cased(Evaluator&, const Value& self, const Args&) {
  const std::string text = to_text(self).text;
  return text == (kUpper ? to_upper(text) : to_lower(text)) && to_upper(text) != to_lower(text);
}
Result<bool> is_filter(Evaluator&, const Value& self, const Args&) {
  return self.text() && find_filter(self.text()->text) != nullptr;
}
Result<bool> is_test(Evaluator&, const Value& self, const Args&) {
  return self.text() && find_test(self.text()->text) != nullptr;
}

constexpr Named<Test> kTests[] = {
    {"defined", plain<[](const Value& v) { return !v.is_undefined(); }>},
    {"undefined", plain<[](const Value& v) { return v.is_undefined(); }>},
    {"none", plain<[](const Value& v) { return v.is_none(); }>},
    {"boolean", plain<[](const Value& v) { return v.as_bool() != nullptr; }>},
    {"true", plain<[](const Value& v) { return v.as_bool() && *v.as_bool(); }>},
    {"false", plain<[](const Value& v) { return v.as_bool() && !*v.as_bool(); }>},
    {"integer", plain<[](const Value& v) { return v.integer() != nullptr; }>},
    {"float", plain<[](const Value& v) { return v.real() != nullptr; }>},
    {"number", plain<[](const Value& v) { return v.is_number(); }>},
    {"string", plain<[](const Value& v) { return v.text() != nullptr; }>},
    {"mapping", plain<is_mapping>},
    {"iterable", plain<is_iterable>},
    {"sequence", plain<is_iterable>},  // as jinja2: whatever has a length and items
    {"callable", plain<[](const Value& v) { return v.callable() != nullptr; }>},
    {"filter", is_filter},
    {"test", is_test},
    {"odd", parity<1>},
    {"even", parity<0>},
    {"upper", cased<true>},
    {"lower", cased<false>},
    {"divisibleby", divisible_by},
    {"sameas", same_as},
    {"in", in},
    {"equalto", equal_to},
    {"eq", equal_to},
    {"ne", not_equal},
    {"gt", ordered<1, false>},
    {"greaterthan", ordered<1, false>},
    {"ge", ordered<1, true>},
    {"lt", ordered<-1, false>},
    {"lessthan", ordered<-1, false>},
    {"le", ordered<-1, true>}};

}  // namespace

std::span<const Named<Test>> tests() { return kTests; }

}  // namespace se::text::jinja
