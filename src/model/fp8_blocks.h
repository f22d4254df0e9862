// model/fp8_blocks.h -- block-FP8 weights (spec/models.md 7.2) in a form that products are computed in.
#pragma once
#include "base/status.h"
#include "model/model_file.h"

namespace se {

// stored: kF8E4M3 [out, in] with scales of 128 x 128 squares. Returns the same values in memory that `file`
// owns: kF8_32 (32 codes and their scale), or f32 where `in` is no multiple of 32. Errors: a code or a scale
// that is no finite number, with its place; no memory.
Result<TensorView> repack_fp8(ModelFile& file, const StoredTensor& stored);

}  // namespace se
