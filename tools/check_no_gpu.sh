#!/bin/bash
# What a CUDA program says on a machine it cannot run on: one line, exit status 1.
#   tools/check_no_gpu.sh KBENCH      (skipped, with a message, where there is a GPU)
bench=${1:?usage: tools/check_no_gpu.sh KBENCH}
if [ -e /dev/nvidia0 ]; then
  echo "a GPU is here: skipped"
  exit 0
fi
failed=0
check() { # device, pattern
  local said rc
  said=$("$bench" --check --device "$1" 2>&1)
  rc=$?
  if [ $rc != 1 ] || [ "$(printf '%s\n' "$said" | wc -l)" != 1 ] || ! printf '%s' "$said" | grep -qE "$2"; then
    echo "--device $1: exit status $rc, said: $said; expected one line like: $2"
    failed=1
  fi
}
check cuda "no CUDA device found|driver"
check cuda:9 "no CUDA device found|driver"
check gpu "expected 'cuda' or 'cuda:N'"
exit $failed
