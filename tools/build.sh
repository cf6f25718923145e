#!/bin/sh
# Configures a build folder if need be and builds targets in it: sh tools/build.sh BUILD [TARGET...]
# TESSERA_JOBS: how many compilers at once (default: one a core). TESSERA_SETUP: further options of `meson setup`, used when
# the folder is new.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$1
shift

# Meson reads the list of sources when it configures, so a new or removed one means configuring again.
sources=$(cd "$root" && find tests examples bench -name '*.cpp' | LC_ALL=C sort)
if [ ! -f "$build/build.ninja" ]; then
  rm -rf "$build/meson-private" "$build/meson-info" # of a configuration that was interrupted
  # shellcheck disable=SC2086 # TESSERA_SETUP is a list
  meson setup "$build" "$root" -Dhdf5=enabled -Donednn=enabled -Dnifti=enabled -Dfftw=enabled -Dtests=enabled -Dexamples=enabled \
    -Dbench=enabled ${TESSERA_SETUP:-}
elif [ "$sources" != "$(cat "$build/sources.txt" 2> /dev/null)" ]; then
  meson setup --reconfigure "$build" "$root"
fi
printf '%s\n' "$sources" > "$build/sources.txt"
# nproc would count the threads that OMP_NUM_THREADS allows one process.
exec ninja -C "$build" -j "${TESSERA_JOBS:-$(unset OMP_NUM_THREADS; nproc)}" -k 0 "$@"
