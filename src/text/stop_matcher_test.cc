#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace se::text {
namespace {

struct Outcome {
  std::string text, found;
  bool operator==(const Outcome&) const = default;
};

Outcome run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.text += matcher.push(piece);
  outcome.text += matcher.finish();
  outcome.found = matcher.found();
  return outcome;
}

TEST(StopMatcher, ShowsTheTextBeforeTheStopOnly) {
  EXPECT_EQ(run({"END"}, {"some text", "E", "N", "D more"}), (Outcome{"some text", "END"}));
  EXPECT_EQ(run({"END"}, {"some E", "NX"}), (Outcome{"some ENX", ""}));
  EXPECT_EQ(run({"END"}, {"tail EN"}), (Outcome{"tail EN", ""}));
  EXPECT_EQ(run({"END"}, {"END"}), (Outcome{"", "END"}));
  EXPECT_EQ(run({}, {"a", "b"}), (Outcome{"ab", ""}));
  EXPECT_EQ(run({""}, {"a", "b"}), (Outcome{"ab", ""}));
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBeginAStop) {
  StopMatcher matcher({"\nUser:"});
  EXPECT_EQ(matcher.push("line\n"), "line");
  EXPECT_EQ(matcher.push("Us"), "");
  EXPECT_EQ(matcher.push("ed\n"), "\nUsed");
  EXPECT_EQ(matcher.push("User: x"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.push("anything"), "");
}

TEST(StopMatcher, TheStopThatIsCompleteFirstWins) {
  EXPECT_EQ(run({"abcd", "bc"}, {"xabcd"}), (Outcome{"xa", "bc"}));
  EXPECT_EQ(run({"bc", "abc"}, {"xabcd"}), (Outcome{"x", "abc"}));
}

TEST(StopMatcher, TheCutOfTheTextDoesNotMatter) {
  std::mt19937 random(5);
  const auto word = [&](int most) {
    std::string s;
    for (int n = 1 + int(random() % most); n > 0; --n) s += "ab"[random() % 2];
    return s;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::vector<std::string> stops = {word(6), word(6)};
    const std::string text = word(20);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random() % 4;
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    EXPECT_EQ(run(stops, pieces), run(stops, {text}));
  }
}

}  // namespace
}  // namespace se::text
