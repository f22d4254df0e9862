// Writes the random tiny Llama of model/testing as a GGUF file, for tests of the command line.
#include <cstdio>

#include "model/testing/tiny_llama.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "tiny_model: expected one argument, the file to write\n");
    return 2;
  }
  if (const se::Status s = se::write_tiny_llama(argv[1]); !s.ok()) {
    std::fprintf(stderr, "tiny_model: %s\n", s.message().c_str());
    return 1;
  }
  return 0;
}
