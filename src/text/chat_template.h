// text/chat_template.h -- a model's chat template: messages to the text of a prompt.
// Rendering equals jinja2's as Hugging Face `transformers` sets it up (trim_blocks, lstrip_blocks, loop
// controls, its tojson, raise_exception and strftime_now).
//
// Injection: every string of the messages and tools is marked as content when it enters the template, and
// string operations carry the marks along beside the text (text/jinja/marked.h). The result tells which
// bytes came from content; Tokenizer::encode_with_plain then parses no control token that touches one of
// them, while the text is encoded as a whole, so that ids equal those of the plain text otherwise.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace se::text {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", ...
  std::string content;
};

struct RenderOptions {
  bool add_generation_prompt = true;
  std::string bos_token = "", eos_token = "";  // as text
  std::string tools_json = "";                 // array of tool definitions; empty = none
  std::string variables_json = "";  // object with further variables, e.g. {"enable_thinking": false}
  int64_t now = -1;                 // seconds since 1970 for strftime_now; -1 = the clock
};

struct RenderedChat {
  std::string text;
  std::vector<Span> content;  // bytes of `text` that messages or tools brought: sorted, disjoint
};

struct TemplateLimits {
  int64_t output_bytes = int64_t(64) << 20;  // of the text and of every string on the way
  int64_t steps = 4'000'000;                 // statements, expressions, items, 256 bytes of text
  int depth = 400;                           // nested evaluations
};

// Immutable once made; render may be called from any thread. Movable.
class ChatTemplate {
 public:
  // Errors name the line and what was found there; features chat templates do not use are refused by name.
  static Result<ChatTemplate> parse(std::string_view source, TemplateLimits limits = {});
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Fails with what the template raises (raise_exception), with template errors, and with kExhausted when a
  // limit is passed.
  Result<RenderedChat> render(std::span<const ChatMessage> messages, const RenderOptions& options = {}) const;
  // messages_json: array of objects as in a chat request, passed on as they are.
  Result<RenderedChat> render_json(std::string_view messages_json, const RenderOptions& options = {}) const;

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<const Program> program);
  std::unique_ptr<const Program> program_;
};

// The ids of a rendered chat: control tokens of the template are parsed, those in content are not, and no
// BOS is added (templates write their own).
std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const RenderedChat& chat);

}  // namespace se::text
