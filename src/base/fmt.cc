#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include "base/fmt.h"

namespace se {

std::string format_text(fmt::string_view text, fmt::format_args args) { return fmt::vformat(text, args); }

}  // namespace se
