#!/usr/bin/env bash
# Adds a made-up keeper in one folder of a copy of the tree, and asks whether parser, help, conformance suite and table
# pick it up with no other edit.   tools/check_new_stage.sh
set -euo pipefail
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$copy" 2>/dev/null
stage=$copy/src/sparse/keep/odd_places
mkdir -p "$stage"
cat >"$stage/CMakeLists.txt" <<'TXT'
se_stage(keep odd_places SOURCES odd_places.cc)
TXT
cat >"$stage/odd_places.cc" <<'TXT'
// Keeps the first `sink` tokens and every second one after them: no method, a test of the contract.
#include "sparse/contract.h"

namespace se {
namespace {
class OddPlaces final : public Keeper {
 public:
  KeeperSpec spec(const ModelKv&, const CodecSpec&) const override {
    KeeperSpec s;
    s.scope = KeepScope::kAllLayers;
    s.prefix = PrefixMode::kChain;
    s.sink = sink_;
    return s;
  }
  bool due(int l, const SeqView& q) const override { return q.last_chunk && q.resident[size_t(l)] > budget_; }
  int64_t resident(int l, const SeqView& q) const override {
    const int64_t n = q.resident[size_t(l)];
    return due(l, q) ? sink_ + (n - sink_ + 1) / 2 : n;
  }
  int64_t peak(int, const SeqView& q) const override { return q.prompt + q.max_new; }
  void pick(int, const KeepInput& in, KeepList& out, DeviceStep& s) const override {
    const int32_t n = *in.in.counts.ptr<int32_t>();
    int32_t kept = 0;
    for (int32_t i = 0; i < n; ++i) {
      const bool all = s.force_select || n <= budget_;
      if (all || i < sink_ || (i - sink_) % 2 == 0) out.ordinals.ptr<int32_t>()[kept++] = in.in.ordinals.ptr<int32_t>()[i];
    }
    *out.counts.ptr<int32_t>() = kept;
  }
  std::string family() const override { return "odd_places"; }
  void visit(FieldVisitor& f) override {
    f({.name = "budget", .help = "rows up to this length stay whole", .min = 1}, budget_);
    f({.name = "sink", .help = "first tokens always kept"}, sink_);
  }

 private:
  int64_t budget_ = 4096, sink_ = 4;
};
}  // namespace
extern const StageEntry stage_keep_odd_places;
const StageEntry stage_keep_odd_places{Axis::kKeep, "odd_places", "every second token after the sink", "made up for a test",
                                       [] { return std::unique_ptr<Stage>(new OddPlaces); }};
}  // namespace se
TXT
cmake -S "$copy" -B "$copy/build/cpu-release" -G Ninja -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$copy/build/cpu-release" --target sparse-engine conformance_test -- --quiet
engine=$copy/build/sparse-engine
"$engine" methods | grep -q '^keep *odd_places' || { echo "not in the table"; exit 1; }
"$engine" methods --matrix | grep -q '^odd_places' || { echo "not in the matrix"; exit 1; }
"$engine" methods --json | grep -q '"stage":"odd_places"' || { echo "not in the JSON"; exit 1; }
cd "$copy"
"$copy"/build/cpu-release/src/sparse/testing/conformance_test --gtest_filter='*odd_places*:Fingerprints*' >"$copy/log" ||
  { grep -E 'Failure|FAILED' "$copy/log" | head; exit 1; }
grep -E '^\[  PASSED  \]' "$copy/log"
echo "a stage in one folder: table, matrix, JSON and conformance picked it up"
