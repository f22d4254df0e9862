// base/fmt.h -- se::format; a thin shim, since libstdc++ 12 lacks std::format.
#pragma once
#include <fmt/format.h>

#include <string>

namespace se {
using fmt::format;
}
