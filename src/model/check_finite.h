// model/check_finite.h -- whether all weights are numbers.
#pragma once
#include <cstdint>
#include <functional>

#include "base/status.h"
#include "model/model_file.h"

namespace se {

// Reads every tensor of the file once, which brings its pages in as well: f32, f16 and bf16 must be finite,
// and so must the scales of blocks. (Block-FP8 has been checked by then: repack_fp8.) An infinity or a NaN in
// one weight would make every logit one, without a word. `report` (may be empty) is told the bytes done of
// all, now and then. Errors: kInvalid, naming the tensor and the place.
Status check_finite(const ModelFile& file, const std::function<void(int64_t done, int64_t total)>& report);

}  // namespace se
