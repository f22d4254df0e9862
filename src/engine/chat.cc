// Conversations to ids, through the model's own chat template.
#include "engine/engine_impl.h"
#include "text/answer_parts.h"

namespace se {
namespace {

Result<text::RenderedChat> render(const Engine::Impl& e,
                                  const std::vector<ChatMessage>& messages,
                                  bool generation_prompt) {
  if (!e.chat_template)
    return unsupported(format("{} has no chat template: it takes plain text only (--raw)", e.info.path));
  std::vector<text::ChatMessage> list;
  for (const ChatMessage& m : messages) list.push_back({m.role, m.content});
  text::RenderOptions o;
  o.add_generation_prompt = generation_prompt;
  o.bos_token = std::string(e.tokenizer->token_text(e.tokenizer->bos()));
  o.eos_token = std::string(e.tokenizer->token_text(e.tokenizer->eos()));
  return e.chat_template->render(list, o);
}

}  // namespace

Result<std::vector<int32_t>> Engine::chat_ids(const std::vector<ChatMessage>& messages,
                                              bool add_generation_prompt) const {
  SE_ASSIGN(const text::RenderedChat chat, render(*impl_, messages, add_generation_prompt));
  return text::encode_chat(*impl_->tokenizer, chat);
}

std::vector<AnswerPart> Engine::answer_parts(const std::string& answer) const {
  const auto marks = text::marks_of(impl_->checkpoint.chat_template);
  std::string prompt;  // whether it opens a part does not depend on what was asked
  if (!marks.empty()) {
    const auto chat = render(*impl_, {{"user", "?"}}, true);
    if (chat.ok()) prompt = chat->text;
  }
  std::vector<AnswerPart> parts;
  for (text::AnswerPart& p : text::answer_parts(answer, prompt, marks)) {
    const auto kind = p.kind == text::PartKind::kReasoning  ? AnswerPart::Kind::kReasoning
                      : p.kind == text::PartKind::kToolCall ? AnswerPart::Kind::kToolCall
                                                            : AnswerPart::Kind::kContent;
    parts.push_back({kind, std::move(p.text)});
  }
  return parts;
}

Result<std::vector<int32_t>> Engine::chat_turn_ids(const std::vector<ChatMessage>& messages) const {
  static const std::string kMark =
      "\x02the answer before\x03";  // stands in for content that is in the KV already
  std::vector<ChatMessage> marked = messages;
  auto last = marked.rbegin();
  while (last != marked.rend() && last->role != "assistant") ++last;
  if (last == marked.rend()) return invalid("a turn follows an assistant message, the conversation has none");
  last->content = kMark;
  SE_ASSIGN(text::RenderedChat chat, render(*impl_, marked, true));
  const size_t at = chat.text.rfind(kMark);
  if (at == std::string::npos) return unsupported("the chat template does not show the assistant's words");
  const size_t from = at + kMark.size();
  text::RenderedChat rest;
  rest.text = chat.text.substr(from);
  for (text::Span s : chat.content) {
    if (size_t(s.end) <= from) continue;
    s.begin = s.begin > decltype(s.begin)(from) ? s.begin - decltype(s.begin)(from) : 0;
    s.end -= decltype(s.end)(from);
    rest.content.push_back(s);
  }
  return text::encode_chat(*impl_->tokenizer, rest);
}

}  // namespace se
