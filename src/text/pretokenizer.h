// text/pretokenizer.h -- splits text into the pieces inside which BPE may merge.
// One scanner function per family, hand-written after the regular expression of its tokenizer.json
// (spec/models.md 10.1): faster and safer than a general regex engine. A new family is one function
// and one line of the table in pretokenizer.cc.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace se::text {

using Pieces = std::vector<std::string_view>;

// Appends the pieces of `text` to `out`, in order; together they are exactly `text`.
using PreTokenizer = void (*)(std::string_view text, Pieces& out);

// Null when the name is not known.
PreTokenizer find_pretokenizer(std::string_view name);

// "gpt-2, smollm": for error messages.
std::string pretokenizer_names();

}  // namespace se::text
