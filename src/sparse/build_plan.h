// sparse/build_plan.h -- from text and a table of stages to a plan; parse_plan (sparse/plan.h) calls it with
// the table of this build, tests with one of their own.
#pragma once
#include <memory>
#include <span>
#include <string_view>

#include "sparse/plan.h"

namespace se {

// `stages` must hold a codec named "dtype": the default store, and what staged prompts lie in.
Result<std::shared_ptr<const Plan>> build_plan(std::string_view text,
                                               const ModelKv& model,
                                               std::span<const StageEntry* const> stages);

}  // namespace se
