#include "model/testing/tiny_vocab.h"

#include "base/check.h"
#include "text/vocab.h"

namespace se {
namespace {

std::string utf8(uint32_t code) {  // below 0x800
  if (code < 0x80) return std::string(1, char(code));
  return {char(0xc0 | code >> 6), char(0x80 | (code & 63))};
}

// The 256 byte tokens in byte order, as printable code points (spec/models.md 10.1).
std::vector<std::string> byte_tokens() {
  std::vector<std::string> out;
  uint32_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    out.push_back(utf8(printable ? b : next++));
  }
  return out;
}

#define SE_SPACE "\u0120"  // the code point that stands for a blank
const std::vector<std::string>& merges() {
  static const std::vector<std::string> kMerges = {
      "t h",         SE_SPACE " t",  SE_SPACE " a",   "h e",         "i n",         "r e",         "o n",
      "e r",         "a n",          SE_SPACE "t he", "e s",         "o r",         "e n",         "a t",
      "i s",         "o u",          "i t",           "a r",         "e d",         SE_SPACE " s", "an d",
      SE_SPACE " w", SE_SPACE " o",  "in g",          "a l",         "l l",         "i c",         "o m",
      SE_SPACE " c", "i d",          SE_SPACE " f",   "th e",        "s t",         "l e",         "v e",
      "a s",         SE_SPACE "o f", SE_SPACE " b",   SE_SPACE " p", SE_SPACE " m", "r o"};
  return kMerges;
}
#undef SE_SPACE

}  // namespace

void set_tiny_vocab(GgufWriter& w) {
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::vector<int32_t> types(tokens.size(), int32_t(text::TokenType::kControl));
  for (const std::string& t : byte_tokens()) tokens.push_back(t);
  for (const std::string& m : merges()) {
    const size_t blank = m.find(' ');
    tokens.push_back(m.substr(0, blank) + m.substr(blank + 1));
  }
  types.resize(tokens.size(), int32_t(text::TokenType::kNormal));
  SE_CHECK(int(tokens.size()) == kTinyVocab, "{} tokens", tokens.size());
  w.set("tokenizer.ggml.model", "gpt2");
  w.set("tokenizer.ggml.pre", "gpt-2");
  w.set("tokenizer.ggml.tokens", tokens);
  w.set("tokenizer.ggml.token_type", types);
  w.set("tokenizer.ggml.merges", merges());
  w.set("tokenizer.ggml.bos_token_id", uint32_t(kTinyImStart));
  w.set("tokenizer.ggml.eos_token_id", uint32_t(kTinyImEnd));
  w.set("tokenizer.ggml.unknown_token_id", uint32_t(kTinyEndOfText));
  w.set("tokenizer.ggml.padding_token_id", uint32_t(kTinyImEnd));
  w.set("tokenizer.ggml.add_bos_token", false);
  w.set("tokenizer.ggml.add_space_prefix", false);
  w.set("tokenizer.chat_template",
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
        "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% "
        "endif %}");
}

}  // namespace se
