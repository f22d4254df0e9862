#include "sparse/prefill/flashprefill/energies.h"
//
#include "sparse/prefill/flashprefill/energies.inl"

namespace se::flashprefill {

const Energies kEnergiesAvx2 = energies_of;

}  // namespace se::flashprefill
