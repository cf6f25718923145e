#!/bin/sh
# usage: ends.sh <the ends program> [mpirun]
# A program on three ranks ends with the right status and message, whichever rank throws, and never hangs.
# Prints one line `ends: N passed, N failed`; the status is 0 if none failed.
program=$1
mpirun=${2:-mpirun}
passed=0
failed=0

# expect <way> <status> <times the text appears> <text>
expect() {
  output=$(TESSERA_TIMEOUT=20 timeout -k 5 60 "$mpirun" -n 3 "$program" "$1" 2>&1)
  status=$?
  times=$(printf '%s\n' "$output" | grep -c -F -- "$4")
  if [ "$status" -eq "$2" ] && [ "$times" -eq "$3" ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'ends: "%s" gave status %s, not %s, or printed %s times, not %s: %s\n%s\n' \
      "$1" "$status" "$2" "$times" "$3" "$4" "$output"
  fi
}

expect none 0 0 'tessera'
expect seven 7 0 'tessera: error'
expect all 1 1 'tessera: error on all 3 ranks: the same on all'
expect each 1 3 'tessera: error on rank '
expect agree 1 1 'tessera: error on all 3 ranks: no such file (on rank 2 of 3)'
expect one 1 1 'tessera: error on rank 2 of 3: only here'
expect terminate 1 1 'tessera: rank 2: uncaught'
expect pending 1 1 'tessera: error on rank 2 of 3: with a receive pending'
expect scope 1 1 'tessera: rank 2 ends with an exception while others go on'
expect late 1 1 'barrier, 0 bytes (this is rank 0 of 3, transport mpi): not complete after'

echo "ends: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
