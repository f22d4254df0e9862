#include "sparse/read/quest/score.h"

#include "device/cpu/isa.h"

namespace se::quest {

ScoreUnit score_unit(int dim) {
  return cpu::isa() >= cpu::Isa::kAvx2 && dim % 8 == 0 ? &score_unit_avx2 : &score_unit_ref;
}

}  // namespace se::quest
