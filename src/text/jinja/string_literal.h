// text/jinja/string_literal.h -- the escapes of Python's string literals.
#pragma once
#include <string>
#include <string_view>

#include "base/status.h"

namespace se::text::jinja {

// The text between the quotes with escapes resolved. An unknown escape keeps its backslash. Fails for
// \N{...}, short \x, \u, \U and values that are no character; `line` is named in the error.
Result<std::string> unescape(std::string_view literal, int line);

}  // namespace se::text::jinja
