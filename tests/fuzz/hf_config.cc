// config.json.
#include "model/hf/hf_config.h"

#include "tests/fuzz/memory_file.h"

namespace {

se::Status read(const std::string& path) {
  SE_ASSIGN(const se::JsonObject file, se::JsonObject::open(path, 1 << 20));
  SE_ASSIGN(const se::JsonObject inner, se::language_config(file));
  return se::read_hf_config(file, inner).status();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const se::MemoryFile file;
  file.write(data, size);
  if (const se::Status status = read(file.path()); !status.ok()) se::check_message(status.message());
  return 0;
}
