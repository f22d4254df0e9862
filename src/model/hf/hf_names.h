// model/hf/hf_names.h -- from tensor names of a Hugging Face checkpoint to those of GGUF
// (spec/models.md 9.2).
#pragma once
#include <string>
#include <string_view>

#include "model/hyper_parameters.h"

namespace se {

struct HfName {
  std::string name;      // GGUF's; one that is not known stays as it is and is refused by the family
  bool ignored = false;  // not part of the language model's forward pass
  int64_t expert = -1;   // of `name`, where each expert is a tensor
  bool gate_up =
      false;  // [experts, 2 ffn, hidden]: rows of ffn_gate_exps, then of ffn_up_exps; `name` is the block's
  bool minus_one = false;
};

HfName translate(std::string_view name, const HyperParameters& config);

}  // namespace se
