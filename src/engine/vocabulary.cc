#include "sparseengine/vocabulary.h"

#include <exception>
#include <filesystem>

#include "base/fmt.h"
#include "model/gguf_vocab.h"
#include "text/hf_folder.h"
#include "text/tokenizer.h"

namespace se {
namespace {

Result<text::VocabSpec> read(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    SE_ASSIGN(text::FolderText folder, text::read_folder_text(path));
    return std::move(folder.vocab);
  }
  try {
    SE_ASSIGN(const Gguf file, Gguf::open(path));
    return read_vocab(file);
  } catch (const std::exception& e) {  // bad_alloc on metadata as large as memory
    return exhausted(format("{}: cannot load: {}", path, e.what()));
  }
}

}  // namespace

Vocabulary::Vocabulary(std::unique_ptr<text::Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}
Vocabulary::~Vocabulary() = default;

Result<std::unique_ptr<Vocabulary>> Vocabulary::open(const std::string& path) {
  SE_ASSIGN(text::VocabSpec spec, read(path));
  Result<text::Tokenizer> tokenizer = text::Tokenizer::create(std::move(spec));
  if (!tokenizer.ok()) return tokenizer.status().in(path);
  return std::unique_ptr<Vocabulary>(new Vocabulary(std::make_unique<text::Tokenizer>(tokenizer.take())));
}

std::vector<int32_t> Vocabulary::tokenize(const std::string& text,
                                          bool add_special,
                                          bool parse_special) const {
  return tokenizer_->encode(text, {add_special, parse_special});
}

Result<std::string> Vocabulary::detokenize(std::span<const int32_t> ids, bool skip_special) const {
  for (const int32_t id : ids) {
    if (id < 0 || id >= tokenizer_->size()) {
      return invalid(format("token id {} is outside the vocabulary of {}", id, tokenizer_->size()));
    }
  }
  return tokenizer_->decode(ids, skip_special);
}

}  // namespace se
