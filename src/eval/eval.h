// eval/eval.h -- quality of plans beside dense, in one run: every sample's prompt is computed once under
// dense and taken over by all plans that compute prompts in the same way. One record a sample and plan goes
// to FOLDER/samples.jsonl as soon as it is there, so a run that was stopped goes on where it was.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "eval/tasks.h"
#include "sparseengine/engine.h"

namespace se::eval {

struct EvalOptions {
  std::vector<Suite> suites;
  std::vector<std::string> plans;  // canonical or not; dense is added in front if it is missing
  std::vector<int64_t> lengths{2048};
  int64_t text_length = 0;   // prompt tokens of ppl, kld, recall; 0: as the others
  int64_t samples = 10;      // of each suite and length; needle: also the number of depths
  int64_t continue_by = 64;  // ppl, kld, recall: tokens that are forced and compared
  uint64_t seed = 1;
  std::string text;    // haystack and stretches; empty: made-up sentences, and no ppl, kld, recall
  std::string folder;  // made if missing
  std::function<void(int64_t done, int64_t total)> progress;  // answers; may be empty
};

// One answer. What does not apply is -1.
struct Record {
  std::string suite;  // "text" for ppl, kld and recall, which share their answers
  std::string plan, answer;
  int64_t length = 0, sample = 0, prompt_tokens = 0, cached_tokens = 0;
  double depth = -1, score = -1;
  double nll = -1, kl = -1, same_top = -1, recall = -1;  // means over the forced tokens
  double kv_bytes = 0, peak_bytes = 0, dense_bytes = 0, read_ratio = 0;
};

// Runs what is not in the folder yet and returns all records. Errors: kInvalid for suites without a text,
// lengths over the context, plan texts, a folder that holds another run (says which setting differs); kIo.
Result<std::vector<Record>> evaluate(Engine& engine, const EvalOptions& options);

// Means by plan, in the order of `plans`.
struct Summary {
  std::string plan;
  double kv_share = 0, read_share = 0;  // of dense's bytes; of the tokens dense reads
  std::map<std::string, double> score;  // by question suite, 0 .. 1
  double ppl = -1, kl = -1, same_top = -1, recall = -1;
};
std::vector<Summary> summarise(const std::vector<Record>& records, const std::vector<std::string>& plans);
std::string table(const std::vector<Summary>& summaries);  // Markdown

// Pictures, SVG. needle_map: a panel a plan, depth by length, colour by score; empty if there is no needle
// record. quality_map: score (or divergence, where there are no questions) against KV bytes.
std::string needle_map(const std::vector<Record>& records, const std::vector<std::string>& plans);
std::string quality_map(const std::vector<Summary>& summaries);

}  // namespace se::eval
