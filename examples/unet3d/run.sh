#!/bin/sh
# 3D U-Net from nothing: installs packages and the heads when root (else prints the one line to run), builds, trains on two
# ranks that split every volume along depth: the brain mask of one human, tested on another; then nine regions of the left
# half, tested on the right half in a mirror. One subject per atlas: a demonstration, never a clinical claim.
#
# Sizes can be changed from outside: RESOLUTION (mm), BASE_WIDTH, STEPS, RANKS, GRID, OUT, TARGETS.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${TESSERA_BUILD:-$root/build}
resolution=${RESOLUTION:-2} width=${BASE_WIDTH:-8} steps=${STEPS:-100}
ranks=${RANKS:-2} seed=${SEED:-1} targets=${TARGETS:-brain regions}
grid=${GRID:-1x${ranks}x1x1}
out=${OUT:-$root/out/unet3d}

sh "$root/tools/setup.sh" mricron-data insighttoolkit5-examples
sh "$root/tools/build.sh" "$build" examples/unet3d

# One thread a rank: the ranks share the cores. As root and with more ranks than cores Open MPI wants to be asked.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none

# A run that hangs must end: the limit is generous, TIME_LIMIT changes it (seconds).
limit=${TIME_LIMIT:-3600}
for target in $targets; do
  echo "training: $target, grid $grid (samples x depth x height x width), results in $out/$target"
  timeout -k 10 "$limit" mpirun -n "$ranks" "$build/examples/unet3d" --target "$target" --resolution "$resolution" \
    --base-width "$width" --steps "$steps" --grid "$grid" --seed "$seed" --out "$out/$target"
done
