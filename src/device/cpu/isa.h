// device/cpu/isa.h -- which instruction set the CPU kernels use: the best the machine has, or a lower
// one forced by SE_ISA=baseline|avx2|avx512|amx. A level the machine lacks is refused at start-up.
#pragma once
#include <cstdint>

#include "base/status.h"

namespace se::cpu {

// kAvx2: with FMA and F16C; kAvx512: F, BW, VL, DQ, VNNI; kAmx: tiles of int8 and BF16, where the system lets
// us.
enum class Isa : uint8_t { kBaseline, kAvx2, kAvx512, kAmx };
const char* to_string(Isa isa);
Isa best_isa();  // of this machine; the first call asks the system for the state of AMX tiles
Result<Isa>
wanted_isa();  // SE_ISA, or best_isa(); kInvalid for unknown names, kUnsupported for missing levels
Isa isa();     // wanted_isa(), cached; best_isa() where SE_ISA is bad (entry points check first)
void set_isa_for_test(Isa isa);
// Not a level, for it changes no bit: whether level kAvx512 has AVX512_BF16 here.
bool has_avx512_bf16();

}  // namespace se::cpu
