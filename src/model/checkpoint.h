// model/checkpoint.h -- a model file opened: shape, tensors (memory-mapped), vocabulary, chat template.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/status.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace se {

struct LoadProgress {  // called now and then with bytes touched of total; may be empty
  std::function<void(int64_t done, int64_t total)> report;
};

struct Checkpoint {
  std::unique_ptr<Model> model;
  VocabSpec vocab;
  std::string chat_template;  // empty: none
  std::vector<int32_t> end_ids;  // end of generation: eos, eot, eom
};

// Opens a GGUF file. Errors (one line each, naming the file): unreadable, not GGUF, truncated, tensors outside the file
// or overlapping the header, unknown types, wrong shapes, missing tensors or keys, an architecture this build lacks (names it
// and lists those it has).
Result<Checkpoint> load_checkpoint(const std::string& path, const LoadProgress& progress = {});

}  // namespace se
