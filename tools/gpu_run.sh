#!/bin/bash
# Checks and times the CUDA kernels on a machine with a GPU: half a minute, with `sanitize` two or three minutes.
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

# One tool over the checks of one op; what did not come to its end in 90 s says so.
sanitize() {
  local only=() status said
  [ "$1" = racecheck ] && only=(--kernel-regex kns=cuda)  # not the references beside ours
  said=$(timeout 90 compute-sanitizer --tool "$1" "${only[@]}" --print-limit 5 "$bench" --check --op "$2" 2>&1)
  status=$?
  [ $status = 124 ] && said+=$'\n'"stopped after 90 s, $(grep -c '^========= Error' <<<"$said") errors so far"
  printf '%s %s: %s\n' "$1" "$2" "$(tail -1 <<<"$said")"
  grep -A6 -E '^========= (Error|Warning)|^FAILED' <<<"$said" | head -20
  return 0
}
if [ "$2" = sanitize ]; then
  export -f sanitize
  # Many at a time: they wait for the processor, not for the GPU. The slow ones first.
  for op in sample scores prefill keep moe linear attention latent blocks moe_prompt block_gemm gemm small gguf topk quest; do
    for tool in racecheck initcheck memcheck; do
      [ "$tool $op" = "racecheck gemm" ] || echo "$tool $op"  # it breaks inside cuBLASLt's own kernels
    done
  done | xargs -P "$(nproc)" -L 1 bash -c 'sanitize "$0" "$1"' | tee "$out/sanitizer.txt"
fi
exit $rc
