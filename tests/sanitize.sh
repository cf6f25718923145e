#!/bin/sh
# The tests under sanitizers, each program as one process with its ranks as threads: address and undefined behaviour for all
# folders (build-asan/), data races for those where threads talk (build-tsan/). Slow; not part of tests/run.sh.
# sh tests/sanitize.sh [address] [thread]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
sh "$root/tools/setup.sh"
export PYTHONDONTWRITEBYTECODE=1
# g++ 12 warns wrongly about uninitialised variables in instrumented code.
common="-Dbuildtype=debugoptimized -Dwerror=false -Db_lundef=false -Dbench=disabled"
status=0

for kind in ${*:-address thread}; do
  case $kind in
  address)
    echo "== address, undefined"
    TESSERA_SETUP="$common -Db_sanitize=address,undefined" \
      ASAN_OPTIONS="detect_stack_use_after_return=1" \
      UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1" \
      LSAN_OPTIONS="suppressions=$root/tests/lsan.supp:print_suppressions=0" \
      python3 "$root/tests/run.py" --build "$root/build-asan" --one-process --limit 900 --build-limit 3600 || status=1
    ;;
  thread)
    echo "== thread"
    TESSERA_SETUP="$common -Db_sanitize=thread" \
      TSAN_OPTIONS="suppressions=$root/tests/tsan.supp:halt_on_error=1:second_deadlock_stack=1" \
      python3 "$root/tests/run.py" --build "$root/build-tsan" --one-process --limit 900 --build-limit 3600 \
      --only 'test_(comm|tensor|move|expr|layer|net|train) ' || status=1
    ;;
  *)
    echo "sanitize.sh: '$kind' is none of address, thread" >&2
    exit 2
    ;;
  esac
done
exit $status
