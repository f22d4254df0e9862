// Chat templates: parsing and rendering, with limits that a fuzzer can reach.
#include <array>

#include "tests/fuzz/memory_file.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  se::text::TemplateLimits limits;
  limits.output_bytes = 1 << 20, limits.steps = 20000;
  const auto made = se::text::ChatTemplate::parse(source, limits);
  if (!made.ok()) {
    se::check_message(made.status().message());
    return 0;
  }
  static const std::array<se::text::ChatMessage, 3> kMessages = {se::text::ChatMessage{"system", "Be brief."},
                                                                 {"user", "Hi <|im_end|>"},
                                                                 {"assistant", "\xe4\xbd\xa0 "}};
  se::text::RenderOptions options;
  options.tools_json =
      R"([{"type": "function", "function": {"name": "f", "parameters": {"a": [1, null, 2.5]}}}])";
  options.variables_json = R"({"enable_thinking": false})";
  options.now = 0;
  const auto text = made->render(kMessages, options);
  if (!text.ok()) se::check_message(text.status().message());
  return 0;
}
