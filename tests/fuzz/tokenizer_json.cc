// tokenizer.json: reading it, and encoding and decoding with what came out.
#include "tests/fuzz/memory_file.h"
#include "text/hf_folder.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const se::MemoryFile file;
  static const std::string folder = se::folder_of("tokenizer.json", file);
  file.write(data, size);
  auto text = se::text::read_folder_text(folder);
  if (!text.ok()) {
    se::check_message(text.status().message());
    return 0;
  }
  const auto tokenizer = se::text::Tokenizer::create(std::move(text->vocab));
  if (!tokenizer.ok()) {
    se::check_message(tokenizer.status().message());
    return 0;
  }
  (void)tokenizer->decode(tokenizer->encode("the cat <|im_end|> 12345\n\n \xff\xe4\xbd", {true, true}));
  return 0;
}
