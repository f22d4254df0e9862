// GGUF files: keys, tensors, vocabulary, template, and the family that takes them.
#include "model/checkpoint.h"
#include "tests/fuzz/memory_file.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const se::MemoryFile file;
  file.write(data, size);
  const auto loaded = se::load_checkpoint(file.path());
  if (!loaded.ok()) {
    se::check_message(loaded.status().message());
    return 0;
  }
  const auto tokenizer = se::text::Tokenizer::create(loaded->vocab);
  if (!tokenizer.ok()) {
    se::check_message(tokenizer.status().message());
    return 0;
  }
  (void)tokenizer->decode(tokenizer->encode("the cat \xff", {true, true}));
  return 0;
}
