#define FMT_HEADER_ONLY
#include "base/fmt.h"

#include <fmt/format.h>

namespace se {

std::string format_text(fmt::string_view text, fmt::format_args args) { return fmt::vformat(text, args); }

}  // namespace se
