#!/bin/bash
# Builds the CUDA kernels and their bench with nvcc alone, checks and times them, on a machine with a GPU.
#   tools/gpu_run.sh OUT_DIR [sanitize]
# Needs nvcc and the fmt headers (SE_FMT_INCLUDE=dir, default the system's). Raw logs go to OUT_DIR.
set -o pipefail
cd "$(dirname "$0")/.." || exit 1
out=${1:?usage: tools/gpu_run.sh OUT_DIR [sanitize]}
mkdir -p "$out" build/gpu
cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")")
PATH=$cuda/bin:$PATH
common="-std=c++20 -Isrc -Ibench ${NVCC_FLAGS}"
[ -n "$SE_FMT_INCLUDE" ] && common="$common -I$SE_FMT_INCLUDE"
# fmt 9 has no constexpr under nvcc, so its compile-time check of formats must be off there.
flags="$common -O3 -gencode=arch=compute_90a,code=sm_90a -DFMT_CONSTEVAL="
sources="src/base/fmt.cc src/base/status.cc src/base/log.cc src/device/tensor.cc $(ls src/device/cuda/*.cc src/device/cuda/*.cu)
  $(ls src/kernels/*/*_cuda.cc src/kernels/*/*_cuda.cu src/sparse/*/*/*_cuda.cu 2>/dev/null) $(ls bench/kbench/*.cc bench/kbench/*.cu)"
begin=$(date +%s) pids=() objects=()
for s in $sources; do
  [ -e "$s" ] || continue
  o=build/gpu/$(echo "$s" | tr '/' '_').o
  objects+=("$o")
  case $s in
    *.cu) nvcc $flags -Xptxas -v -c "$s" -o "$o" >"$o.log" 2>&1 & ;;
    *) g++ $common -O2 -ffp-contract=off -isystem "$cuda/include" -c "$s" -o "$o" >"$o.log" 2>&1 & ;;
  esac
  pids+=($!)
done
good=1
for p in "${pids[@]}"; do wait "$p" || good=0; done
grep -hE 'error|warning' build/gpu/*.log | grep -v Winvalid-constexpr | cut -c1-300 | head -20
[ $good = 1 ] || { echo "build failed"; exit 1; }
grep -hE 'Compiling entry|registers|spill' build/gpu/*.cu.o.log >"$out/ptxas.txt"
nvcc $flags "${objects[@]}" -o build/gpu/kbench || exit 1
echo "# built in $(($(date +%s) - begin)) s"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader | tee "$out/gpu.txt"
build/gpu/kbench ${KBENCH_ARGS} | tee "$out/kbench.jsonl"
rc=$?
if [ "$2" = sanitize ]; then
  for tool in memcheck racecheck initcheck; do
    echo "# compute-sanitizer $tool"
    timeout 150 compute-sanitizer --tool $tool --print-limit 5 build/gpu/kbench --check 2>&1 | tail -4
  done | tee "$out/sanitizer.txt"
fi
exit $rc
