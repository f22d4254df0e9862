// text/answer_parts.h -- an answer's text parted into content, reasoning and tool calls, by the marks that
// the model's chat template shows (serving.md A.8). Non-goals: what a tool call says.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace se::text {

enum class PartKind : uint8_t { kContent, kReasoning, kToolCall };

struct AnswerMarks {
  PartKind kind;
  std::string_view open, close;  // static
};

struct AnswerPart {
  PartKind kind = PartKind::kContent;
  std::string text;
};

// The marks that occur, both, in the source of a template: <think>, <tool_call>.
std::vector<AnswerMarks> marks_of(std::string_view template_source);

// The parts of `answer` in order, marks left out, parts of white space alone too. prompt: what was rendered
// before it; where that ends with an opening mark, the answer begins behind it. A part that does not end
// goes to the end. Marks within a part of another kind are text.
std::vector<AnswerPart> answer_parts(std::string_view answer,
                                     std::string_view prompt,
                                     const std::vector<AnswerMarks>& marks);

}  // namespace se::text
