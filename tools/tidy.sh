#!/bin/sh
# clang-tidy over headers: sh tools/tidy.sh [HEADER...], by default all. Takes the compiler flags from $TESSERA_BUILD or build/,
# which must be configured (sh tools/build.sh build). Needs clang-tidy. Minutes for all; not part of tests/run.sh.
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$root/tools/tidy.py" --build "${TESSERA_BUILD:-$root/build}" "$@"
