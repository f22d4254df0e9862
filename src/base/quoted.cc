#include "base/quoted.h"

#include "base/fmt.h"

namespace se {

std::string quoted(std::string_view text, size_t shown) {
  std::string out = "'";
  for (const char c : text.substr(0, shown)) {
    if (c >= 0x20 && c < 0x7f) {
      out += c;
    } else {
      out += format("\\x{:02x}", uint8_t(c));
    }
  }
  return out + (text.size() > shown ? "...'" : "'");
}

}  // namespace se
