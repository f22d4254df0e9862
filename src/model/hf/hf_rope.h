// model/hf/hf_rope.h -- the rotary part of config.json. Used by hf_config.cc only.
#pragma once
#include "model/hf/json_file.h"
#include "model/hyper_parameters.h"

namespace se {

// Fills h.rope and h.rope_local from rope_parameters (v5), or rope_theta, rope_scaling and
// rope_local_base_freq (v4). h must have its heads, context and mla already.
Status read_hf_rope(const JsonObject& config, HyperParameters& h);

}  // namespace se
