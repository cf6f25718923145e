#!/bin/sh
# CosmoFlow from nothing: installs packages when root (else prints the one line to run), builds, makes universes, trains on
# two ranks that split every sample along depth, and prints the test error per parameter and where the plots are.
#
# Sizes can be changed from outside: COUNT universes of WIDTH^3 cells of CELL Mpc/h, EPOCHS, BATCH, RATE, NORM
# (none or batch), RANKS, GRID, OUT.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${TESSERA_BUILD:-$root/build}
count=${COUNT:-1200} width=${WIDTH:-32} cell=${CELL:-8} epochs=${EPOCHS:-40} batch=${BATCH:-16} rate=${RATE:-1e-3}
ranks=${RANKS:-2} seed=${SEED:-1} norm=${NORM:-batch}
grid=${GRID:-1x${ranks}x1x1}
out=${OUT:-$root/out/cosmoflow}
data=${DATA:-$root/out/universes-$width-$cell-$seed}

sh "$root/tools/setup.sh"
sh "$root/tools/build.sh" "$build" examples/make_universes examples/cosmoflow

# One thread a rank: the ranks share the cores. As root and with more ranks than cores Open MPI wants to be asked.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none

# A run that hangs must end: the limit is generous, TIME_LIMIT changes it (seconds).
limit=${TIME_LIMIT:-3600}
echo "universes: $count of $width^3 cells of $cell Mpc/h in $data"
timeout -k 10 "$limit" mpirun -n "$ranks" "$build/examples/make_universes" \
  --count "$count" --width "$width" --cell "$cell" --seed "$seed" --out "$data"
echo "training: grid $grid (samples x depth x height x width), results in $out"
exec timeout -k 10 "$limit" mpirun -n "$ranks" "$build/examples/cosmoflow" --data "$data" --width "$width" --grid "$grid" \
  --batch "$batch" --epochs "$epochs" --rate "$rate" --norm "$norm" --seed "$seed" --out "$out"
