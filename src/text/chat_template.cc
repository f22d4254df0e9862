#include "text/chat_template.h"

#include <ctime>

#include "base/fmt.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/json.h"
#include "text/jinja/parser.h"
#include "text/unicode.h"

namespace se::text {

using jinja::Dict;
using jinja::Marked;
using jinja::Value;

namespace {

// Errors print names and texts of the template and of what it was given: shown as one line of at most
// kShown bytes, with \xNN for control characters and for what is not UTF-8.
template <typename T>
Result<T> on_one_line(Result<T> result) {
  constexpr size_t kShown = 512;
  if (result.ok()) return result;
  const std::string& message = result.status().message();
  std::string line;
  for (size_t at = 0; at < message.size();) {
    const CodePoint c = code_point_at(message, at);
    const bool shown = c.value >= 0xa0 || (c.value >= 0x20 && c.value < 0x7f);
    const std::string piece = message.substr(at, size_t(c.size));
    if (line.size() + piece.size() > kShown) return Status(result.status().code(), line + "...");
    if (shown) line += piece;
    for (size_t i = 0; !shown && i < piece.size(); ++i) line += format("\\x{:02x}", uint8_t(piece[i]));
    at += size_t(c.size);
  }
  return Status(result.status().code(), std::move(line));
}

Result<Dict> context_of(Value messages, const RenderOptions& options) {
  Dict context;
  context.set("messages", std::move(messages));
  Value tools(jinja::None{});
  if (!options.tools_json.empty()) {
    SE_ASSIGN(tools, jinja::from_json(options.tools_json, true, "tools"));
  }
  context.set("tools", std::move(tools));
  context.set("documents", Value(jinja::None{}));
  context.set("add_generation_prompt", Value(options.add_generation_prompt));
  context.set("bos_token", Value(options.bos_token));
  context.set("eos_token", Value(options.eos_token));
  if (options.variables_json.empty()) return context;
  SE_ASSIGN(const Value variables, jinja::from_json(options.variables_json, true, "template variables"));
  if (!variables.dict()) {
    return invalid(format("template variables: wanted an object, found '{}'", variables.type_name()));
  }
  for (const auto& [name, value] : variables.dict()->items) context.set(name.text, value);
  return context;
}

}  // namespace

struct ChatTemplate::Program {
  jinja::Body body;
  TemplateLimits limits;

  Result<RenderedChat> render(Value messages, const RenderOptions& options) const {
    return on_one_line(render_values(std::move(messages), options));
  }
  Result<RenderedChat> render_values(Value messages, const RenderOptions& options) const {
    SE_ASSIGN(const Dict context, context_of(std::move(messages), options));
    const int64_t now = options.now >= 0 ? options.now : int64_t(std::time(nullptr));
    jinja::Evaluator evaluator({limits.output_bytes, limits.steps, limits.depth}, now);
    SE_ASSIGN(Marked result, evaluator.run(body, context));
    return RenderedChat{std::move(result.text), std::move(result.content)};
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Program> program) : program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, TemplateLimits limits) {
  SE_ASSIGN(jinja::Body body, on_one_line(jinja::parse(source)));
  auto program = std::make_unique<Program>();
  program->body = std::move(body);
  program->limits = limits;
  return ChatTemplate(std::move(program));
}

Result<RenderedChat> ChatTemplate::render(std::span<const ChatMessage> messages,
                                          const RenderOptions& options) const {
  std::vector<Value> list;
  for (const ChatMessage& message : messages) {
    Dict dict;
    dict.set("role", Value(Marked::all(message.role)));
    dict.set("content", Value(Marked::all(message.content)));
    SE_ASSIGN(Value value, Value::dict(std::move(dict)));
    list.push_back(std::move(value));
  }
  SE_ASSIGN(Value value, Value::list(std::move(list)));
  return program_->render(std::move(value), options);
}

Result<RenderedChat> ChatTemplate::render_json(std::string_view messages_json,
                                               const RenderOptions& options) const {
  SE_ASSIGN(Value messages, on_one_line(jinja::from_json(messages_json, true, "messages")));
  if (!messages.list()) return invalid(format("messages: wanted an array, found '{}'", messages.type_name()));
  return program_->render(std::move(messages), options);
}

std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const RenderedChat& chat) {
  return tokenizer.encode_with_plain(chat.text, chat.content, {.add_special = false, .parse_special = true});
}

}  // namespace se::text
