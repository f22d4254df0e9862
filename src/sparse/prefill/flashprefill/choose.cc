#include "sparse/prefill/flashprefill/choose.h"

#include <algorithm>
#include <numeric>

#include "device/cpu/isa.h"
#include "sparse/prefill/flashprefill/energies.h"

namespace se::flashprefill {

Energies energies() {
  const cpu::Isa isa = cpu::isa();
  return isa >= cpu::Isa::kAvx512 ? kEnergiesAvx512
         : isa >= cpu::Isa::kAvx2 ? kEnergiesAvx2
                                  : kEnergiesBaseline;
}

Counts choose(const Rule& rule, const Tile& tile, const float* energy, int32_t* kept, int32_t* means) {
  const int64_t blocks = tile.blocks(rule.block), active = tile.active(rule.block);
  const int64_t own = tile.low() / rule.block;  // the block of the tile's first query
  float most = 0;
  for (int64_t b = 0; b < active; ++b) most = std::max(most, energy[b]);
  const float least = float(rule.threshold) * most;
  Counts n;
  for (int64_t b = 0; b < blocks; ++b) {
    if (b < rule.sink || b > own - rule.window || (b < active && energy[b] >= least)) {
      kept[n.kept++] = int32_t(b);
    } else if (rule.correction && (b + 1) * rule.block <= tile.low()) {
      means[n.means++] = int32_t(b);
    }
  }
  return n;
}

Counts keep_all(const Rule& rule, const Tile& tile, int32_t* kept) {
  const int64_t blocks = tile.blocks(rule.block);
  std::iota(kept, kept + blocks, 0);
  return {int32_t(blocks), 0};
}

}  // namespace se::flashprefill
