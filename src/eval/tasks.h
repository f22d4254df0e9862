// eval/tasks.h -- the questions of `sparse-engine eval`, made from a text and a seed alone.
//
//   needle     one made-up fact at a chosen depth of a long text (as in Kamradt 2023)
//   multikey   eight such facts at random places, one of them asked for (RULER niah_multikey, Hsieh et al.
//   2024) vartrack   a chain of names that stand for one number; all of them asked for (RULER variable
//   tracking) ppl, kld, recall  a stretch of the text, the last tokens of which are forced: perplexity,
//   divergence from dense,
//              share of dense's attention on what was read
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "sparseengine/status.h"

namespace se::eval {

enum class Suite : uint8_t { kPpl, kKld, kRecall, kNeedle, kMultikey, kVartrack };
const char* to_string(Suite suite);
Result<Suite> parse_suite(const std::string& name);  // names those there are
inline bool is_question(Suite s) { return s >= Suite::kNeedle; }

// Sentences of a text, as they stand, each once and in order. Without a text (empty): made-up sentences from
// a fixed bank, as many as wanted.
class Haystack {
 public:
  explicit Haystack(std::string text);
  // n sentences from a place that depends on `sample` alone, going round at the end.
  std::vector<std::string> take(int64_t sample, int64_t n) const;
  int64_t size() const { return int64_t(sentences_.size()); }
  // From a sentence on that depends on (sample, of) alone, about `bytes` bytes of the text as it stands;
  // empty if the text ends before that.
  std::string stretch(int64_t sample, int64_t of, int64_t bytes) const;

 private:
  std::string text_;
  std::vector<std::string> sentences_;
  std::vector<size_t> begins_;
};

struct Question {
  std::vector<std::string> facts;   // sentences to plant ...
  std::vector<double> depths;       // ... each at this share of the haystack
  std::string ask, begin;           // the question; how an answer begins, for models without a chat template
  std::vector<std::string> wanted;  // the score is the share of these found in the answer
  int64_t answer_tokens = 32;
};
// depth: of needle, 0 .. 1; the others draw their own.
Question make_question(Suite suite, uint64_t seed, int64_t sample, double depth);
double score(const Question& question, const std::string& answer);

// The sentences with the facts planted, joined by spaces.
std::string planted(const std::vector<std::string>& sentences, const Question& question);

}  // namespace se::eval
