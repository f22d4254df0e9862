// sparse/testing/conformance.h -- what every stage and every composition must keep (contract.md; style
// guide 3.8), without a line about any one method: plans are made from the table of stages, with small
// numbers put into fields by their names.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "sparse/plan.h"
#include "sparse/testing/test_model.h"

namespace se::testing {

// Text of a stage with numbers that fit rows of a few hundred tokens: budget, sink, recent, window,
// block, last, min_len and dense_layers, where it has such fields; a group that divides the model's heads.
// unlimited: a budget over any row, a threshold of 0. every > 0: sets that field; empty if the stage has
// none.
std::string small_stage(const StageEntry& entry, const ModelKv& model, bool unlimited, int64_t every = 0);

struct Composition {
  std::string text, unlimited;  // as small_stage makes them
  std::string baseline;         // unlimited, without its readers
};
// Every stage alone, and every legal sum of one stage per axis.
std::vector<Composition> compositions(const ModelKv& model);

// Registers every check of every composition with the test framework, as Conformance_NAME.CHECK/PLAN; call it
// in main before the tests run. Returns how many there are. A plan that the model refuses is left out, so say
// in a test of your own which plans must be there.
int add_conformance_tests(const std::string& name, std::shared_ptr<const TestModel> model);

}  // namespace se::testing
