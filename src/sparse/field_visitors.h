// sparse/field_visitors.h -- what is done with the fields of a stage: set from text, printed, fingerprinted.
#pragma once
#include <string>

#include "base/hash.h"
#include "sparse/contract.h"
#include "sparse/parser.h"

namespace se {

// Sets the fields named by `arguments` and validates the stage. kInvalid: unknown keys, values of the wrong
// kind or outside the field's limits, with what was found, what is allowed and the nearest legal choices.
Status set_fields(Stage& stage, const StageEntry& entry, const Arguments& arguments);

// "name", or "name(key=value,...)" with the fields that differ from their defaults, in table order.
std::string print_stage(const StageEntry& entry, Stage& stage);

// Adds name and value of every field that affects at least `what`.
void add_fields(Fingerprint& fingerprint, Stage& stage, Affects what);

}  // namespace se
