// sparse/compose.h -- which stages do not go together, on which models; and the fingerprints of those that
// do.
#pragma once
#include <span>
#include <string>

#include "sparse/plan.h"

namespace se {

// This version: all layers of kind kFull or kWindow and of equal shape. kUnsupported names the layer.
Status check_model(const ModelKv& model);
// The plan's stages and specs are set; `names` by owner number. Refusals name both stages and why.
Status check_composition(const Plan& plan, std::span<const std::string> names);
// Sets state_id and read_id of an assembled plan (contract.md 15).
void add_fingerprints(Plan& plan, std::span<const std::string> names);

}  // namespace se
