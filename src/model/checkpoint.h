// model/checkpoint.h -- a model file opened: shape, tensors (memory-mapped), vocabulary, chat template.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model.h"
#include "model/model_file.h"
#include "text/vocab.h"

namespace se {

struct LoadProgress {  // called now and then with bytes touched of total, last with done == total; may be
                       // empty
  std::function<void(int64_t done, int64_t total)> report;
};

struct Checkpoint {
  ModelFile file;  // the model's weights are views into it
  std::unique_ptr<Model> model;
  text::VocabSpec vocab;
  std::string chat_template;     // empty: none
  std::vector<int32_t> end_ids;  // end of generation: eos, eot, eom, as far as the file names them; each once
};

struct LoadedModel {
  ModelFile file;  // the model's weights are views into it
  std::unique_ptr<Model> model;
};

// The weights of a GGUF file or a Hugging Face folder without vocabulary and template. Errors as
// load_checkpoint.
Result<LoadedModel> load_model(const std::string& path);

// Opens a GGUF file or a Hugging Face folder and brings its weights into memory (they are used where they lie
// in the mapping). Errors, one line each, naming the file and where in it: unreadable, not GGUF, truncated,
// tensors outside the file or on each other's bytes, unknown types, wrong shapes, missing or unused tensors,
// missing or contradictory keys, an architecture this build lacks (names it and lists those it has).
Result<Checkpoint> load_checkpoint(const std::string& path, const LoadProgress& progress = {});

}  // namespace se
