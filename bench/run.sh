#!/bin/sh
# All benchmarks, in under ten minutes on two cores: builds, measures, prints a table, writes bench/results.jsonl.
# Run it on a quiet machine; every rate is given beside the hardware limit that was measured in the same run.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=${TESSERA_BUILD:-$root/build}
sh "$root/tools/setup.sh"
sh "$root/tools/build.sh" "$build" bench/bench_peak bench/bench_convolution bench/bench_cosmoflow_step
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$root/bench/run.py" --build "$build" --out "$root/bench/results.jsonl"
