#!/bin/bash
# Checks and times the CUDA kernels on a machine with a GPU: two minutes, with `sanitize` some six more.
#   tools/gpu_run.sh OUT_DIR [sanitize]
# Takes the bench that the preset cuda-release built (build it anywhere: no GPU is needed for that), or builds it.
# SE_KBENCH: another one; KBENCH_ARGS: its arguments. Raw logs go to OUT_DIR.
set -o pipefail
cd "$(dirname "$0")/.." || exit 1
out=${1:?usage: tools/gpu_run.sh OUT_DIR [sanitize]}
mkdir -p "$out"
export bench=${SE_KBENCH:-build/cuda-release/bench/kbench/sparse-engine-kbench}
if [ ! -x "$bench" ]; then
  cmake --preset cuda-release -DSE_TESTS=OFF && cmake --build build/cuda-release --target sparse-engine-kbench || exit 1
fi
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader | tee "$out/gpu.txt"
"$bench" ${KBENCH_ARGS} | tee "$out/kbench.jsonl"
rc=$?

# One tool over the checks of one op (and what else the bench is told); what did not come to its end in 200 s says so.
sanitize() {
  local only=() status said tool=$1 op=$2
  shift 2
  [ "$tool" = racecheck ] && only=(--kernel-regex kns=cuda)  # not the references beside ours
  said=$(timeout 200 compute-sanitizer --tool "$tool" "${only[@]}" --print-limit 5 "$bench" --check --op "$op" "$@" 2>&1)
  status=$?
  [ $status = 124 ] && said+=$'\n'"stopped after 200 s, $(grep -c '^========= Error' <<<"$said") errors so far"
  printf '%s: %s\n' "$tool $op${*:+ $*}" "$(tail -1 <<<"$said")"
  grep -A6 -E '^========= (Error|Warning)|^FAILED' <<<"$said" | head -20
  return 0
}
if [ "$2" = sanitize ]; then
  export -f sanitize
  # Many at a time: they wait for the processor, not for the GPU. The slow ones first, in shares; of sampling a few rows
  # for racecheck, which takes ten seconds a row. gemm is left out there: racecheck breaks inside cuBLASLt's own kernels.
  { for i in {0..4}; do echo "racecheck sample --few --share $i/5"; done
    for i in {0..3}; do echo "racecheck attention --share $i/4"; done
    for i in {0..5}; do echo "racecheck prefill --share $i/6"; done
    for i in {0..2}; do echo "racecheck blocks --share $i/3"; done
    for op in linear latent moe topk gguf small quest scores keep moe_prompt block_gemm; do echo "racecheck $op"; done
    for op in attention prefill blocks linear latent moe topk gguf small sample quest scores keep moe_prompt block_gemm gemm; do
      printf '%s\n' "memcheck $op" "initcheck $op"
    done; } | xargs -P "$(nproc)" -L 1 bash -c 'sanitize "$0" "$@"' | tee "$out/sanitizer.txt"
fi
exit $rc
