// model/testing/tiny_llama.h -- a random Llama small enough for every test: seeded weights, the vocabulary of
// tiny_vocab.h. Same options, same file, on every machine.
#pragma once
#include <string>
#include <vector>

#include "base/status.h"
#include "model/testing/gguf_writer.h"
#include "model/testing/tiny_tensor.h"
#include "model/testing/tiny_vocab.h"

namespace se {

struct TinyLlamaOptions {
  uint64_t seed = 1;
  int layers = 3, hidden = 64, q_heads = 4, kv_heads = 2, head_dim = 16,
      ffn = 128;  // widths: multiples of 32
  int64_t context = 32768;
  std::vector<DType> types = {DType::kF32};  // of the projections, in turn; kF32, kF16, kQ8_0 or kQ4_1
  DType embedding = DType::kF32;
  bool tied = true;
  bool rope_divisors = false;  // adds rope_freqs
  bool biases = false;         // on q, k, v and o
  float rope_theta = 10000, rope_linear = 1;
  float qk_gain = 1.5f;  // deviation of projected q and k: how peaked attention is
};

std::vector<TinyTensor> tiny_llama_tensors(const TinyLlamaOptions& options);

// The file as a writer, so that a test can change or break it before writing.
GgufWriter tiny_llama(const TinyLlamaOptions& options = {});
Status write_tiny_llama(const std::string& path, const TinyLlamaOptions& options = {});

}  // namespace se
