// Writes the random tiny Llama of model/testing as a GGUF file, for tests of the command line.
#include <cstdio>
#include <string_view>

#include "model/testing/tiny_llama.h"

int main(int argc, char** argv) {
  const bool small = argc == 3 && std::string_view(argv[2]) == "--small";
  if (argc != 2 && !small) {
    std::fprintf(stderr, "tiny_model: expected the file to write, and perhaps --small\n");
    return 2;
  }
  se::TinyLlamaOptions options;
  if (small) options.layers = 1, options.hidden = options.ffn = 32, options.q_heads = 2, options.kv_heads = 1;
  if (const se::Status s = se::write_tiny_llama(argv[1], options); !s.ok()) {
    std::fprintf(stderr, "tiny_model: %s\n", s.message().c_str());
    return 1;
  }
  return 0;
}
