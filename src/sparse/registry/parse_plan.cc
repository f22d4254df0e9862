#include "sparse/build_plan.h"

namespace se {

Result<std::shared_ptr<const Plan>> parse_plan(std::string_view text, const ModelKv& model) {
  return build_plan(text, model, stage_entries());
}

}  // namespace se
