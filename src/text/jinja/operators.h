// text/jinja/operators.h -- Python's operators on template values.
#pragma once
#include <string_view>

#include "text/jinja/value.h"

namespace se::text::jinja {

// op: + - * / // % ** ~ . Integers are 64 bits wide; a result that needs more is refused.
Result<Value> binary(Evaluator& evaluator, std::string_view op, const Value& a, const Value& b);
// -a or +a
Result<Value> unary(std::string_view op, const Value& a);
// item in container
Result<bool> contains(const Value& container, const Value& item);
// object[key]; undefined when there is none
Result<Value> item(const Value& object, const Value& key);
// object.name: methods before entries of a dict, as in jinja2
Result<Value> attribute(const Value& object, std::string_view name);
// object[start:stop:step]; parts that are not given are none
Result<Value> slice(
    Evaluator& evaluator, const Value& object, const Value& start, const Value& stop, const Value& step);

// Byte offsets of the characters of `text`, with its size at the end.
std::vector<size_t> character_offsets(std::string_view text);

}  // namespace se::text::jinja
