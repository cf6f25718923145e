#!/bin/sh
# All tests of Tessera, from nothing: installs packages when root (else prints the one line to run), configures, builds and
# runs. Ends with the line "N passed, N failed"; the exit status is 0 only if nothing failed.
# Builds in build/, or in $TESSERA_BUILD. Options go to tests/run.py: `sh tests/run.sh --only comm`, `sh tests/run.sh --help`.
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
if ! sh "$root/tools/setup.sh"; then
  echo "0 passed, 1 failed"
  exit 1
fi
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$root/tests/run.py" --build "${TESSERA_BUILD:-$root/build}" "$@"
