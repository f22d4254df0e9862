// sparse/parser.h -- plan text to stages: grammar, names, how often an axis may be answered.
//
//   plan  := stage ('+' stage)*
//   stage := name [ '(' key '=' value (',' key '=' value)* ')' ]
// Blanks between these are ignored; a value goes on to the next ',' or ')'.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sparse/contract.h"

namespace se {

using Arguments = std::vector<std::pair<std::string, std::string>>;  // key, value, as written

struct StageText {
  std::string name;
  Arguments arguments;
};

// The grammar alone. Blank text is the empty plan. kInvalid names the column, what was found and what was
// wanted.
Result<std::vector<StageText>> parse_stage_texts(std::string_view text);

struct ChosenStage {
  const StageEntry* entry = nullptr;
  std::unique_ptr<Stage> stage;  // its fields set and validated
};

// Stages in canonical order (by axis, several keepers as written) without the words for "nothing" (dense,
// all, device). kInvalid: unknown or repeated names, keys and values, two answers to one question.
// kUnsupported: what the plan language knows and this version does not have.
Result<std::vector<ChosenStage>> choose_stages(std::string_view text,
                                               std::span<const StageEntry* const> stages);

}  // namespace se
