#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include "base/fmt.h"

namespace se {

std::string vformat(fmt::string_view format, fmt::format_args args) { return fmt::vformat(format, args); }

}  // namespace se
