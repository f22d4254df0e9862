#include "cli/inspect_page.h"

#include <inspect_kv_html.h>  // kInspectKvHtml: page/inspect_kv.html, made by the build

#include "base/check.h"

namespace se::cli {

std::string inspect_page(const std::string& data) {
  std::string page(reinterpret_cast<const char*>(kInspectKvHtml), sizeof kInspectKvHtml);
  std::string safe;  // no text of a prompt ends the script element
  for (char c : data) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  const size_t at = page.find("@DATA@");
  SE_CHECK(at != std::string::npos, "the page has a place for its data");
  return page.replace(at, 6, safe);
}

}  // namespace se::cli
