// model/testing/tiny_checkpoint.h -- the small random checkpoints of tests/goldens/families: configuration
// and tensor names as Hugging Face publishes them, values made here from a seed exactly as
// tools/goldens/tiny.py makes them, so that logits of transformers can be compared with.
#pragma once
#include <string>
#include <vector>

#include "model/testing/gguf_writer.h"
#include "model/testing/safetensors_writer.h"
#include "model/testing/tiny_tensor.h"
#include "model/testing/tiny_vocab.h"

namespace se {

struct TinyCheckpoint {
  std::string name, config;  // config: config.json
  uint64_t seed = 0;
  std::vector<TinyTensor> tensors;  // F32, by the names of the hub; experts one by one

  // By name: "llama", "qwen2_yarn_untied", ... (tests/goldens/families/NAME.json). Aborts if there is none.
  static TinyCheckpoint load(const std::string& name);

  std::vector<int32_t> ids(int64_t count) const;  // those of the goldens
  // Writes config.json and model.safetensors. fused: experts as gate_up_proj and down_proj.
  void write_folder(const TempFolder& folder, bool fused = false) const;
  // The same model as llama.cpp's converter writes it (spec/models.md 9), with the vocabulary of
  // tiny_vocab.h. Matrices in `dtype` (kF16 where their rows are no whole blocks of it), the rest in F32.
  GgufWriter gguf(DType dtype = DType::kF32) const;
};

// Names of all, sorted.
std::vector<std::string> tiny_checkpoint_names();

}  // namespace se
