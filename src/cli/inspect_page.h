// cli/inspect_page.h -- the page of `inspect kv`: one HTML file that needs nothing else.
#pragma once
#include <string>

namespace se::cli {

// data: the JSON object of `inspect kv --json`.
std::string inspect_page(const std::string& data);

}  // namespace se::cli
