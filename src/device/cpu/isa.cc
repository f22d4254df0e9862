#include "device/cpu/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/check.h"

namespace se::cpu {

const char* to_string(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

namespace {
// __builtin_cpu_supports of Clang 14 does not know it.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

// Tiles, int8 and BF16 products, and the system's leave to use them (for this process and its threads): a
// system that does not know them, or does not save them, refuses the request.
bool has_amx() {
#ifdef SE_EMULATE_TILES
  return true;
#endif
  constexpr unsigned kAll = 1u << 24 | 1u << 25 | 1u << 22;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kAll) != kAll) return false;
  constexpr long kRequestState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
}

Isa probe() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni");
  if (!avx2 || !avx512) return avx2 ? Isa::kAvx2 : Isa::kBaseline;
  return has_amx() ? Isa::kAmx : Isa::kAvx512;
}
}  // namespace

bool has_avx512_bf16() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return best_isa() >= Isa::kAvx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);
  }();
  return has;
}

Isa best_isa() {
  static const Isa best = probe();
  return best;
}

Result<Isa> wanted_isa() {
  const char* env = std::getenv("SE_ISA");
  if (!env || !*env) return best_isa();
  for (Isa level : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (std::string_view(env) != to_string(level)) continue;
    if (level > best_isa())
      return unsupported(format("SE_ISA={}: this machine has {} at most", env, to_string(best_isa())));
    return level;
  }
  return invalid(format("SE_ISA={}: expected baseline, avx2, avx512 or amx", env));
}

namespace {
Isa& current() {
  static Isa level = [] {
    const auto wanted = wanted_isa();
    return wanted.ok() ? *wanted : best_isa();
  }();
  return level;
}
}  // namespace

Isa isa() { return current(); }
void set_isa_for_test(Isa level) {
  SE_CHECK(level <= best_isa(), "this machine has no {}", to_string(level));
  current() = level;
}

}  // namespace se::cpu
