#!/bin/bash
# Checks and times the CUDA kernels on a machine with a GPU: about a minute, with `sanitize` two.
#   tools/gpu_run.sh OUT_DIR [sanitize]
# Takes the bench that the preset cuda-release built (build it anywhere: no GPU is needed for that), or builds it.
# SE_KBENCH: another one; KBENCH_ARGS: its arguments. Raw logs go to OUT_DIR.
set -o pipefail
cd "$(dirname "$0")/.." || exit 1
out=${1:?usage: tools/gpu_run.sh OUT_DIR [sanitize]}
mkdir -p "$out"
bench=${SE_KBENCH:-build/cuda-release/bench/kbench/sparse-engine-kbench}
if [ ! -x "$bench" ]; then
  cmake --preset cuda-release -DSE_TESTS=OFF && cmake --build build/cuda-release --target sparse-engine-kbench || exit 1
fi
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader | tee "$out/gpu.txt"
"$bench" ${KBENCH_ARGS} | tee "$out/kbench.jsonl"
rc=$?
if [ "$2" = sanitize ]; then
  for tool in memcheck racecheck initcheck; do
    echo "# compute-sanitizer $tool"
    only=()  # racecheck breaks inside cuBLASLt's own kernels
    [ $tool = racecheck ] && only=(--kernel-regex kns=cuda)
    timeout 200 compute-sanitizer --tool $tool "${only[@]}" --print-limit 5 "$bench" --check 2>&1 | tail -4
  done | tee "$out/sanitizer.txt"
fi
exit $rc
