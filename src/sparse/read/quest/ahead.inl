// ahead.inl -- asks for the bounds of a later unit: each page's lie apart from the last one's, where no
// machine follows by itself. Past the outer caches: a step reads them once. Text for quest_avx2.cc and
// quest_avx512.cc: internal linkage.
namespace {

constexpr int kUnitsAhead = 12;

// Inlined by force: GCC takes a function that only prefetches for one without effect and drops the call.
__attribute__((always_inline)) inline void ask_for(const char* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 0);
}
__attribute__((always_inline)) inline void ask_for_bounds(const se::quest::SplitQuery& q,
                                                          const se::quest::BoundsFormat& f,
                                                          const se::quest::UnitBounds& b) {
  const auto size = [&](se::quest::Narrow type) { return q.dim * (type == se::quest::Narrow::kF32 ? 4 : 2); };
  ask_for(b.lo, (q.kv_heads - 1) * f.lo_stride + size(f.lo));
  ask_for(b.hi, (q.kv_heads - 1) * f.hi_stride + size(f.hi));
}

}  // namespace
