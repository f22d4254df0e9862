// text/jinja/functions.h -- the filters, tests, methods and global functions of templates.
// Each is a plain function found by name in a table; semantics are jinja2's and Python's, with the tojson,
// raise_exception and strftime_now that Hugging Face `transformers` adds.
#pragma once
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace se::text::jinja {

// self | name(args)
using Filter = Result<Value> (*)(Evaluator&, const Value& self, const Args&);
// self is name(args)
using Test = Result<bool> (*)(Evaluator&, const Value& self, const Args&);
// self.name(args); self is of the type whose table holds it
using Method = Result<Value> (*)(Evaluator&, const Value& self, const Args&);
using Function = Result<Value> (*)(Evaluator&, const Args&);

template <typename F>
struct Named {
  std::string_view name;
  F function;
};

std::span<const Named<Filter>> string_filters();
std::span<const Named<Filter>> sequence_filters();
std::span<const Named<Test>> tests();
std::span<const Named<Function>> global_functions();

// Null when there is no such name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);
// The methods of strings, lists and dicts; null when self has no such method.
Method find_method(const Value& self, std::string_view name);

// Arguments in the order of `names`, null where not given. Fails for too many or unknown ones.
Result<std::vector<const Value*>> bind(std::string_view callee,
                                       const Args& args,
                                       std::initializer_list<std::string_view> names);

// Fail with "callee: wanted ..., found ...".
Result<const Marked*> want_text(std::string_view callee, const Value& value);
Result<int64_t> want_integer(std::string_view callee, const Value& value);

// The items a for loop would see: of lists, the keys of dicts, the characters of strings; none of an
// undefined value. Fails for other types. Charges a step per item.
Result<std::vector<Value>> items_of(Evaluator& evaluator, const Value& value);

// Text without the characters of `set` (white space when null) at its begin and end, as str.strip.
Marked strip(const Marked& text, const Marked* set, bool begin, bool end);

}  // namespace se::text::jinja
