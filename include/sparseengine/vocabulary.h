// sparseengine/vocabulary.h -- text to token ids and back with a model's tokenizer, without its weights.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparseengine/status.h"

namespace se {

namespace text {
class Tokenizer;
}

// Every member may be called from any thread.
class Vocabulary {
 public:
  // A GGUF file, or a Hugging Face folder, of which tokenizer.json suffices. Errors are one line that names
  // the file and what in it is wrong or not known.
  static Result<std::unique_ptr<Vocabulary>> open(const std::string& path);
  ~Vocabulary();

  // add_special: BOS and EOS where the model wants them. parse_special: special tokens written in the text.
  std::vector<int32_t> tokenize(const std::string& text, bool add_special, bool parse_special) const;
  // Valid UTF-8. Fails for ids that are not in the vocabulary.
  Result<std::string> detokenize(std::span<const int32_t> ids, bool skip_special) const;

 private:
  explicit Vocabulary(std::unique_ptr<text::Tokenizer> tokenizer);
  std::unique_ptr<text::Tokenizer> tokenizer_;
};

}  // namespace se
