// model/gguf_vocab.h -- the tokenizer part of a GGUF file (spec/models.md 10.2).
#pragma once
#include "base/status.h"
#include "model/gguf.h"
#include "text/vocab.h"

namespace se {

// Checks counts and that special ids name tokens; whether the tokenizer is one we know is the text module's
// business.
Result<text::VocabSpec> read_vocab(const Gguf& file);

}  // namespace se
