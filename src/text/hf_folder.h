// text/hf_folder.h -- the text side of a Hugging Face folder: vocabulary, chat template, end tokens.
// Sections of tokenizer.json are recognised by their structure and mapped onto this module's scanners. What
// is not known (a model, a regular expression, a normalizer, a decoder) is refused by name, never guessed.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/vocab.h"

namespace se::text {

struct FolderText {
  VocabSpec vocab;
  std::string chat_template;     // empty: none
  std::vector<int32_t> end_ids;  // end of generation, each once: the vocabulary's, then generation_config's
};

// Reads tokenizer.json, and as far as they are there tokenizer_config.json, special_tokens_map.json,
// chat_template.jinja (before the template of tokenizer_config.json, before chat_template.json) and
// generation_config.json (config.json where that is missing) of `folder`. No weights are needed. A list of
// named templates gives "default". Errors are one line that names the file and the section: kNotFound without
// tokenizer.json, kInvalid for JSON that contradicts itself, kUnsupported for what this build does not know.
Result<FolderText> read_folder_text(const std::string& folder);

}  // namespace se::text
