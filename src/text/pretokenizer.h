// text/pretokenizer.h -- splits text into the pieces inside which BPE may merge.
// Hand-written after the regular expressions of each family's tokenizer.json (spec/models.md 10.1): faster
// and safer than a general regex engine. A new family is one match function and one line of the table in
// pretokenizer.cc; its tokenizer.json is recognised by one line of the table in hf_pipeline.cc.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace se::text {

using Pieces = std::vector<std::string_view>;

struct PreTokenizer;

// By its name in GGUF files (tokenizer.ggml.pre), further spellings included. Null when the name is not
// known.
const PreTokenizer* find_pretokenizer(std::string_view name);

// The first of its names.
std::string_view pretokenizer_name(const PreTokenizer& pretokenizer);

// "gpt-2, smollm, ...": for error messages.
std::string pretokenizer_names();

// Appends the pieces of `text` to `out`, in order; together they are exactly `text`. Linear in its size.
void split(const PreTokenizer& pretokenizer, std::string_view text, Pieces& out);

}  // namespace se::text
