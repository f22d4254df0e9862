// by_type.inl -- calls score_all, which quest_avx2.cc and quest_avx512.cc define before it, for the types
// that the bounds have. Internal linkage.
namespace {

void score_by_type(const SplitQuery& q, const BoundsFormat& f, const UnitBounds* units, int n, float* out) {
  if (f.levels > 0) {  // a codec's steps are F16
    switch (f.lo) {
      case Narrow::kF32:
        return score_all<Narrow::kF32, Narrow::kF16, true>(q, f, units, n, out);
      case Narrow::kF16:
        return score_all<Narrow::kF16, Narrow::kF16, true>(q, f, units, n, out);
      case Narrow::kBF16:
        return score_all<Narrow::kBF16, Narrow::kF16, true>(q, f, units, n, out);
    }
  }
  switch (f.lo) {
    case Narrow::kF32:
      return score_all<Narrow::kF32, Narrow::kF32, false>(q, f, units, n, out);
    case Narrow::kF16:
      return score_all<Narrow::kF16, Narrow::kF16, false>(q, f, units, n, out);
    case Narrow::kBF16:
      return score_all<Narrow::kBF16, Narrow::kBF16, false>(q, f, units, n, out);
  }
}

}  // namespace
