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

struct LoadOptions {
  int threads = 0;  // that the model will run on: ModelFile::pack
  // Called now and then with bytes touched of total, last with done == total; may be empty.
  std::function<void(int64_t done, int64_t total)> report;
};

struct Checkpoint {
  ModelFile file;  // the model's weights are views into it
  std::unique_ptr<Model> model;
  text::VocabSpec vocab;
  std::string chat_template;     // empty: none
  std::vector<int32_t> end_ids;  // end of generation, each once: eos, eot, eom of a GGUF file; of a folder,
                                 // what tokenizer, config.json and generation_config.json name
};

struct CheckpointText {
  text::VocabSpec vocab;
  std::string chat_template;     // empty: none
  std::vector<int32_t> end_ids;  // as Checkpoint::end_ids
};

struct LoadedModel {
  ModelFile file;  // the model's weights are views into it
  std::unique_ptr<Model> model;
};

// The weights of a GGUF file or a Hugging Face folder without vocabulary and template. Errors as
// load_checkpoint. kLook: to look at, not to run; its weights are not packed.
enum class LoadFor : uint8_t { kRun, kLook };
Result<LoadedModel> load_model(const std::string& path, LoadFor purpose = LoadFor::kRun, int threads = 0);

// The text part of a file that is open. Whether the tokenizer is one we know is the text module's business.
Result<CheckpointText> read_checkpoint_text(const ModelFile& file);

// Opens a GGUF file or a Hugging Face folder and brings its weights into memory: packed for this machine
// (kernels/linear/linear.h), or else used where they lie in the mapping. Errors, one line each, naming the
// file and where in it: unreadable, not GGUF, truncated, tensors outside the file or on each other's bytes,
// unknown types, wrong shapes, missing or unused tensors, weights and scales that are no finite numbers,
// missing or contradictory keys, an architecture this build lacks (names it and lists those it has).
Result<Checkpoint> load_checkpoint(const std::string& path, const LoadOptions& options = {});

}  // namespace se
