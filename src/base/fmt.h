// base/fmt.h -- se::format; a thin shim, since libstdc++ 12 lacks std::format. Only fmt's light core header
// is seen here: the formatting code is compiled once, in fmt.cc (the whole of it in every unit costs 10 s of
// compile time each).
#pragma once
#include <fmt/core.h>

#include <string>

namespace se {

std::string format_text(fmt::string_view text, fmt::format_args args);

template <typename... Args>
std::string format(fmt::format_string<Args...> text, Args&&... args) {
  return ::se::format_text(text, fmt::make_format_args(args...));
}

}  // namespace se
