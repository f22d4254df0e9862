// safetensors files: the header, and its tensors under the names of a Llama and of a Gemma.
#include "model/hf/hf_tensors.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const se::MemoryFile memory;
  memory.write(data, size);
  const auto file = se::Safetensors::open(memory.path());
  if (!file.ok()) {
    se::check_message(file.status().message());
    return 0;
  }
  for (const char* architecture : {"llama", "gemma3", "deepseek2"}) {
    se::HyperParameters config;
    config.architecture = architecture;
    config.layers = 1, config.extra_layers = 1, config.moe.experts = 4, config.tied = true;
    se::HfTensors tensors(config);
    se::Status status = tensors.add(*file);
    if (status.ok()) {
      const auto taken = tensors.take();
      status = taken.status();
    }
    if (!status.ok()) se::check_message(status.message());
  }
  return 0;
}
