#include "text/answer_parts.h"

#include <algorithm>
#include <array>

namespace se::text {
namespace {

constexpr std::array<AnswerMarks, 2> kKnown = {
    AnswerMarks{PartKind::kReasoning, "<think>", "</think>"},
    AnswerMarks{PartKind::kToolCall, "<tool_call>", "</tool_call>"},
};
constexpr std::string_view kSpace = " \t\r\n";

void add(PartKind kind, std::string_view text, std::vector<AnswerPart>& parts) {
  if (text.find_first_not_of(kSpace) != std::string_view::npos) parts.push_back({kind, std::string(text)});
}

}  // namespace

std::vector<AnswerMarks> marks_of(std::string_view template_source) {
  std::vector<AnswerMarks> marks;
  for (const AnswerMarks& m : kKnown) {
    if (template_source.find(m.open) != std::string_view::npos &&
        template_source.find(m.close) != std::string_view::npos)
      marks.push_back(m);
  }
  return marks;
}

std::vector<AnswerPart> answer_parts(std::string_view answer,
                                     std::string_view prompt,
                                     const std::vector<AnswerMarks>& marks) {
  std::vector<AnswerPart> parts;
  const std::string_view before = prompt.substr(0, prompt.find_last_not_of(kSpace) + 1);
  const AnswerMarks* inside = nullptr;
  for (const AnswerMarks& m : marks) {
    if (before.ends_with(m.open)) inside = &m;
  }
  while (!answer.empty()) {
    size_t end = answer.size(), next = end;
    const AnswerMarks* opens = nullptr;
    if (inside != nullptr) {
      end = std::min(end, answer.find(inside->close));
      next = end + (end < answer.size() ? inside->close.size() : 0);
    } else {
      for (const AnswerMarks& m : marks) {
        const size_t at = answer.find(m.open);
        if (at < end) end = at, next = at + m.open.size(), opens = &m;
      }
    }
    add(inside != nullptr ? inside->kind : PartKind::kContent, answer.substr(0, end), parts);
    answer.remove_prefix(next);
    inside = opens;
  }
  return parts;
}

}  // namespace se::text
