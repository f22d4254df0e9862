// base/quoted.h -- foreign text as it may stand in a one-line message.
#pragma once
#include <string>
#include <string_view>

namespace se {

// Printable ASCII, the rest as \xNN, cut at `shown` bytes, in single quotes.
std::string quoted(std::string_view text, size_t shown = 64);

}  // namespace se
