// model/gguf_config.h -- hyper-parameters and tensors of a GGUF file, normalised.
#pragma once
#include "base/status.h"
#include "model/gguf.h"
#include "model/hyper_parameters.h"

namespace se {

// Keys of general.architecture A are read as `A.name`. Errors as Gguf's.
Result<HyperParameters> read_gguf_config(const Gguf& file);

}  // namespace se
