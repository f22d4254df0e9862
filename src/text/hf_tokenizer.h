// text/hf_tokenizer.h -- tokenizer.json of a Hugging Face folder as a VocabSpec. Private to hf_folder.cc.
#pragma once
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "text/vocab.h"

namespace se::text {

using HfJson = nlohmann::json;

// An integer; throws the library's type error for other numbers, whose get<int64_t>() may be undefined.
inline int64_t whole_number(const HfJson& v) { return v.get_ref<const HfJson::number_integer_t&>(); }

// The whole of tokenizer.json, except what tokenizer_config.json says (bos, eos). Errors name the section.
// A token that the post-processor puts before or after the text sets add_bos and bos, or add_eos and eos.
// Throws what the JSON library throws for values of a wrong type; the caller is the door.
Result<VocabSpec> read_tokenizer_json(const HfJson& json);

// hf_pipeline.cc: normalizer, pre_tokenizer and decoder into `spec`. Sets model ("gpt2" where bytes are
// merged, "char-bpe" where `byte_fallback`), pre, nfc and the space prefix.
Status read_pipeline(const HfJson& json, bool byte_fallback, VocabSpec& spec);
// hf_pipeline.cc: the ids that post_processor puts before and after a single text, at most one each.
Status read_post_processor(const HfJson& json, VocabSpec& spec);

}  // namespace se::text
