// model/family.h -- a model family: the code that turns a file of some architecture into a Model.
// A family is a folder under model/families/; model/CMakeLists.txt finds it and generates the table, nothing
// is edited.
#pragma once
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "model/model.h"
#include "model/model_file.h"

namespace se {

// families/x/x.cc defines  const FamilyEntry family_x = {...};
struct FamilyEntry {
  std::span<const std::string_view> architectures;  // values of HyperParameters::architecture it takes
  // The model's weights are views into the file, which must outlive it. Errors as load_checkpoint, one line
  // each.
  Result<std::unique_ptr<Model>> (*load)(ModelFile& file);
};

// All families of this build, by folder name.
std::span<const FamilyEntry* const> families();
// The one that takes `architecture`, or null.
const FamilyEntry* find_family(std::string_view architecture);
// "llama, qwen2": for messages.
std::string architecture_names();

// What every family tells alike: all of ModelShape but norm_eps, rope_theta and tied; vocab is the rows of
// the embedding where the file does not say.
ModelShape describe_file(const ModelFile& file);

}  // namespace se
