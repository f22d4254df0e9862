// sparse/keep_best.h -- the one way keepers turn scores into a kept set (contract.md rule 3).
#pragma once
#include <span>

#include "sparse/contract.h"

namespace se {

// Of in.in (one row): its first `sink`, its last `recent` and the best of the middle up to `budget` tokens in
// all; the middle's scores are max-pooled over `pool` places first (1: off). Scores are indexed by ordinal;
// ties: lower ordinal. Ordinals below in.encoded rank, stay and go in aligned groups of in.grain by mean
// score, a protected token protecting its group; the in.tail ordinals after them always stay and count
// against the budget; others rank singly. Budget tokens are filled group by group while the next best group
// still fits at least in part (so a grain may exceed the budget by less than one group). Everything stays if
// in.in has at most `budget` ordinals. Empty `score`: the middle has none and goes. Writes `out` ascending.
void keep_best(const KeepInput& in,
               std::span<const float> score,
               int64_t sink,
               int64_t recent,
               int64_t budget,
               int pool,
               KeepList& out);

}  // namespace se
