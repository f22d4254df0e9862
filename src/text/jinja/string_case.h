// text/jinja/string_case.h -- upper and lower case of UTF-8 text, one code point to one code point
// (Unicode's simple mappings; Python's full ones differ for a few characters such as U+00DF).
#pragma once
#include <string>
#include <string_view>

namespace se::text::jinja {

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
// First character upper case, the rest lower case.
std::string capitalize(std::string_view text);
// Each word so. Python's str.title starts a word after every character without case (`after_spaces` false),
// jinja2's filter after white space and - ( { [ < only.
std::string title(std::string_view text, bool after_spaces);

}  // namespace se::text::jinja
