// model/hf/safetensors_header.h -- the JSON header of a safetensors file as it stands, kinds checked but not
// yet against each other or the file. Used by safetensors.cc only.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace se {

struct SafeEntry {
  std::string name, dtype;
  std::vector<int64_t> shape, range;  // range: data_offsets
  bool has_shape = false;
};

// Errors: kInvalid with the text only ("byte 12: ..."); the caller adds the file. `at` is the byte of the
// file that the header starts at.
Result<std::vector<SafeEntry>> parse_safetensors_header(std::string_view json, int64_t at);

}  // namespace se
