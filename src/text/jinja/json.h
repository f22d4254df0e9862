// text/jinja/json.h -- JSON text to template values.
#pragma once
#include <string_view>

#include "text/jinja/value.h"

namespace se::text::jinja {

// `mark`: strings and keys are content written by others. `what` names the text in error messages.
Result<Value> from_json(std::string_view json, bool mark, std::string_view what);

}  // namespace se::text::jinja
