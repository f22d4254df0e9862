// sparse/later_stages.h -- what the plan language knows and this version does not have yet; the one list of
// it. A stage that is built is found first: its line here is then dead and goes.
#pragma once
#include <array>
#include <string_view>

#include "sparse/contract.h"

namespace se {

struct LaterStage {
  Axis axis;
  std::string_view name;
};
inline constexpr std::array kLaterStages = {
    LaterStage{Axis::kPrefill, "omnikv_prefill"},
    LaterStage{Axis::kKeep, "adakv"},
    LaterStage{Axis::kKeep, "pyramidkv"},
    LaterStage{Axis::kKeep, "h2o"},
    LaterStage{Axis::kKeep, "h2o_prefill"},
    LaterStage{Axis::kKeep, "rkv"},
    LaterStage{Axis::kKeep, "skipkv"},
    LaterStage{Axis::kKeep, "kvzip"},
    LaterStage{Axis::kStore, "turboquant"},
    LaterStage{Axis::kStore, "palu"},
    LaterStage{Axis::kStore, "lorc"},
    LaterStage{Axis::kStore, "deltakv"},
    LaterStage{Axis::kRead, "omnikv"},
    LaterStage{Axis::kRead, "retroinfer"},
    LaterStage{Axis::kRead, "rabitq"},
    LaterStage{Axis::kRead, "block_topk"},
    LaterStage{Axis::kPlace, "host"},
};

struct LaterParameter {
  std::string_view stage, key, why;
};
inline constexpr std::array kLaterParameters = {
    LaterParameter{"quest", "mass", "it needs a bound of the attention left unread; leave it out, it is off"},
};

}  // namespace se
