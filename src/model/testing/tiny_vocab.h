// model/testing/tiny_vocab.h -- a byte-level vocabulary of 300 tokens (3 control tokens, 256 bytes, 41
// merges) and a ChatML template, for small random checkpoints.
#pragma once
#include <cstdint>

#include "model/testing/gguf_writer.h"

namespace se {

inline constexpr int kTinyVocab = 300;
inline constexpr int32_t kTinyEndOfText = 0, kTinyImStart = 1, kTinyImEnd = 2;  // eos is kTinyImEnd
inline constexpr int32_t kTinyFirstByte = 3;  // id of byte b: kTinyFirstByte + b

void set_tiny_vocab(GgufWriter& w);

}  // namespace se
