#include "text/answer_parts.h"

#include <gtest/gtest.h>

namespace se::text {
namespace {

std::string shown(std::string_view answer, std::string_view prompt, std::string_view source) {
  std::string out;
  for (const AnswerPart& p : answer_parts(answer, prompt, marks_of(source)))
    out += std::string(1, "crt"[int(p.kind)]) + "[" + p.text + "]";
  return out;
}

constexpr std::string_view kBoth = "{{ '<think>' }}..</think>..<tool_call>{{ x }}</tool_call>";

TEST(AnswerParts, MarksComeFromTheTemplate) {
  EXPECT_TRUE(marks_of("{{ messages }}").empty());
  EXPECT_TRUE(marks_of("<think> is not closed").empty());
  ASSERT_EQ(marks_of("<tool_call></tool_call>").size(), 1u);
  EXPECT_EQ(marks_of("<tool_call></tool_call>")[0].kind, PartKind::kToolCall);
  EXPECT_EQ(marks_of(kBoth).size(), 2u);
  EXPECT_EQ(shown("<think>a</think>b", "", "no marks"), "c[<think>a</think>b]");
}

TEST(AnswerParts, PartsComeInOrderWithoutTheirMarks) {
  EXPECT_EQ(shown("", "", kBoth), "");
  EXPECT_EQ(shown("plain", "", kBoth), "c[plain]");
  EXPECT_EQ(shown("<think>\nwhy\n</think>\n\nso <b>", "", kBoth), "r[\nwhy\n]c[\n\nso <b>]");
  EXPECT_EQ(shown("a<tool_call>{1}</tool_call>\n<tool_call>{2}</tool_call>", "", kBoth), "c[a]t[{1}]t[{2}]");
  EXPECT_EQ(shown("<think></think>x", "", kBoth), "c[x]");
}

TEST(AnswerParts, AnAnswerMayBeginBehindAMarkAndEndBeforeOne) {
  EXPECT_EQ(shown("why</think>so", "user: ?\nassistant: <think>\n", kBoth), "r[why]c[so]");
  EXPECT_EQ(shown("why</think>so", "<think>x</think>", kBoth), "c[why</think>so]");
  EXPECT_EQ(shown("<think>cut off", "", kBoth), "r[cut off]");
  EXPECT_EQ(shown("so<tool_call>{", "", kBoth), "c[so]t[{]");
  EXPECT_EQ(shown("so<tool_", "", kBoth), "c[so<tool_]");
  EXPECT_EQ(shown("<think>a <tool_call>b</tool_call></think>c", "", kBoth),
            "r[a <tool_call>b</tool_call>]c[c]");
}

}  // namespace
}  // namespace se::text
