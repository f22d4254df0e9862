#include "text/vocab.h"

#include "text/pretokenizer.h"

namespace se::text {

void set_implied(VocabSpec& spec) {
  const bool sentencepiece = spec.model == "llama";
  const PreTokenizer* pre = sentencepiece ? nullptr : find_pretokenizer(spec.pre);
  const std::string_view name = pre ? pretokenizer_name(*pre) : std::string_view();
  spec.nfc = name == "qwen2" || name == "qwen35";
  spec.ignore_merges = name == "llama-bpe";
  spec.add_bos = sentencepiece || name == "llama-bpe";
  spec.add_space_prefix = sentencepiece;
}

}  // namespace se::text
