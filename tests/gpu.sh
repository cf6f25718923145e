#!/bin/sh
# Everything that needs a GPU, on a machine with one or more: builds, compares every operator and CosmoFlow with the CPU,
# NCCL from a rank to itself, several processes on the GPUs there are, compute-sanitizer, then the bench. At most 8 minutes
# in all after the build (TESSERA_GPU_SECONDS). Needs the CUDA toolkit, cuDNN and NCCL, and what the CPU build needs; MPI
# is optional (TESSERA_SETUP=-Dmpi=disabled).
#
#   sh tests/gpu.sh             builds in build-gpu/ or $TESSERA_BUILD; CUDA in $TESSERA_GPU_ROOT or /usr/local/cuda
#   sh tests/gpu.sh --no-build  with what is built there
#
# Prints JSON lines {"gpu", "case", "result", "seconds"} and those of the bench, also to BUILD/gpu.jsonl. Ends with
# "N passed, N failed", and with status 0 only if nothing failed. A step for which no time is left is "skipped", said so.
set -u
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
build=${TESSERA_BUILD:-$root/build-gpu}
cuda=${TESSERA_GPU_ROOT:-/usr/local/cuda}
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none TESSERA_TIMEOUT="${TESSERA_TIMEOUT:-60}"
PATH=$cuda/bin:$PATH

if [ "${1:-}" != --no-build ]; then
  # The compute capabilities of the GPUs that are here; elsewhere the build's default.
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | tr -d . | sort -u | paste -sd, -)
  export TESSERA_SETUP="${TESSERA_SETUP:-} -Dcuda=enabled -Dgpu_libraries=enabled -Dgpu_root=$cuda ${arch:+-Dgpu_arch=$arch}"
  if ! (unset OMP_NUM_THREADS && sh "$root/tools/build.sh" "$build" tests/test_gpu tests/test_gpu_vendor tests/test_cuda \
    bench/bench_gpu_cosmoflow); then
    echo "0 passed, 1 failed"
    exit 1
  fi
fi

out=$build/gpu.jsonl
: > "$out"
end=$(($(date +%s) + ${TESSERA_GPU_SECONDS:-480}))
passed=0
failed=0
skipped=0

record() { # CASE RESULT SECONDS
  printf '{"gpu": "%s", "case": "%s", "result": "%s", "seconds": %s}\n' "$gpu" "$1" "$2" "$3" | tee -a "$out"
}
# check CASE LIMIT COMMAND...: passes if it ends with 0 within LIMIT seconds and in the time that is left.
check() {
  name=$1 limit=$2
  shift 2
  began=$(date +%s)
  left=$((end - began))
  if [ "$left" -lt 5 ]; then
    skipped=$((skipped + 1))
    record "$name" "skipped: no time left" 0
    return
  fi
  [ "$left" -lt "$limit" ] && limit=$left
  log=$build/gpu-$(echo "$name" | tr -c 'a-z0-9\n' -).log
  if timeout -k 5 "$limit" "$@" > "$log" 2>&1; then
    passed=$((passed + 1))
    record "$name" passed $(($(date +%s) - began))
    grep '^{' "$log" | tee -a "$out"
  else
    status=$?
    failed=$((failed + 1))
    record "$name" "failed: status $status" $(($(date +%s) - began))
    tail -n 40 "$log"
  fi
}

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null | sort | uniq -c | sed 's/^ *//; s/"//g' | paste -sd';' -)
if [ -z "$gpu" ]; then
  gpu=none
  # Still worth something: the plans of described GPUs, and the words of programs that find none.
  check "plans without a GPU" 180 "$build/tests/test_cuda"
  check "programs without a GPU say so" 60 "$build/tests/test_gpu_vendor"
  echo "note: there is no GPU here; nothing ran on one"
  echo "$passed passed, $((failed + 1)) failed"
  exit 1
fi

# What matters most comes first.
check "operators, CosmoFlow, NCCL to itself, pinned memory" 150 "$build/tests/test_gpu_vendor"
check "CosmoFlow with TF32 runs" 30 env TESSERA_MATH=tf32 "$build/bench/bench_gpu_cosmoflow" 64 3
check "plain kernels" 60 "$build/tests/test_gpu"
if command -v mpirun > /dev/null; then
  cosmoflow='gpu: CosmoFlow*'
  check "two processes, transport as chosen" 60 mpirun -n 2 "$build/tests/test_gpu_vendor" -tc="$cosmoflow"
  check "four processes through pinned memory" 60 mpirun -n 4 -x TESSERA_TRANSPORT=host "$build/tests/test_gpu_vendor" \
    -tc="$cosmoflow"
fi
if command -v compute-sanitizer > /dev/null; then
  # Convolutions and dense layers with their epilogues: the vendors' kernels are checked by the way, ours are meant.
  some='gpu: convolutions*,gpu: dense*,gpu: pinned*'
  check "compute-sanitizer memcheck" 90 compute-sanitizer --tool memcheck --error-exitcode 9 "$build/tests/test_gpu_vendor" \
    -tc="$some"
  check "compute-sanitizer racecheck" 60 compute-sanitizer --tool racecheck --error-exitcode 9 \
    --kernel-name regex:run_elements "$build/tests/test_gpu_vendor" -tc='gpu: dense*'
else
  echo "note: compute-sanitizer is not installed; memory accesses of kernels were not checked"
fi
for math in full tf32; do
  for width in 128 256; do
    check "bench $width $math" 60 env TESSERA_MATH=$math "$build/bench/bench_gpu_cosmoflow" $width 20
    check "bench of pytorch $width $math" 60 python3 "$root/bench/gpu/torch_step.py" $width 20 $math
  done
done
if command -v mpirun > /dev/null; then
  check "bench 128 on two ranks" 60 env TESSERA_MATH=tf32 mpirun -n 2 -x TESSERA_MATH "$build/bench/bench_gpu_cosmoflow" 128 20
fi
[ "$skipped" -gt 0 ] && echo "note: $skipped steps were skipped for want of time"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
