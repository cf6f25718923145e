#!/usr/bin/env python3
"""Runs the benchmarks that are built, prints a table, writes JSON lines {"bench", "case", "value", "unit", "note"}."""
import argparse
import json
import os
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import time

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}


def run(command, seconds):
    """The standard output of a command; its whole process group ends after `seconds`."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True,
                               env={**os.environ, **ENVIRONMENT})
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        sys.exit(f"bench: {' '.join(command)} took longer than {seconds} s")
    if process.returncode != 0:
        sys.exit(f"bench: {' '.join(command)} ended with status {process.returncode}")
    return out


def lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def step(build, width, ranks, steps):
    """The records of one run of the training step."""
    command = [os.path.join(build, "bench/bench_cosmoflow_step"), str(width), str(steps)]
    if ranks > 1:
        command = ["mpirun", "-n", str(ranks)] + command
    return lines(run(command, 200))


def steps(build, width, count, rounds):
    """One and two ranks in turn, so that both see the same machine; the medians, and the efficiency round by round."""
    seen = {1: [], 2: []}
    for _ in range(rounds):
        for ranks in seen:
            seen[ranks].append(step(build, width, ranks, count))
    out = []
    for ranks, runs in seen.items():
        for i, record in enumerate(runs[0]):
            values = [r[i]["value"] for r in runs]
            out.append({**record, "value": statistics.median(values)})
    seconds = {n: [next(r["value"] for r in run_ if r["unit"] == "seconds") for run_ in runs] for n, runs in seen.items()}
    ratios = [a / (2 * b) for a, b in zip(seconds[1], seconds[2])]
    out.append({"bench": "strong_scaling", "case": f"w{width} f32 n2", "value": statistics.median(ratios),
                "unit": "efficiency", "note": "time on 1 rank / (2 * time on 2), median of "
                + ", ".join(f"{r:.3f}" for r in ratios)})
    return out


def kernels(build):
    """The Google Benchmark records of the single kernels."""
    text = run([os.path.join(build, "bench/bench_convolution"), "--benchmark_format=json"], 200)
    out = []
    for b in json.loads(text)["benchmarks"]:
        name, _, which = b["name"].partition("/")
        which = which.removesuffix("/min_time:0.300")
        for key, unit in (("gflops", "gflops"), ("fraction_of_fma_peak", "fraction_of_fma_peak"),
                          ("bytes_per_second", "bytes_per_second")):
            if key in b:
                out.append({"bench": name, "case": which, "value": b[key], "unit": unit,
                            "note": f"{b['real_time']:.2f} {b['time_unit']}"})
    return out


def compile_time(build):
    """Seconds and megabytes of the compiler on the CosmoFlow example, as the build compiles it."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        entry = next(e for e in json.load(f) if e["file"].endswith("cosmoflow/cosmoflow.cpp"))
    command = shlex.split(entry["command"])
    command[command.index("-o") + 1] = os.devnull
    start = time.monotonic()
    code = subprocess.run(command, cwd=entry["directory"], check=False).returncode
    seconds = time.monotonic() - start
    if code != 0:
        sys.exit("bench: the CosmoFlow example does not compile")
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    name = "cosmoflow.cpp"
    return [{"bench": "compile", "case": name, "value": seconds, "unit": "seconds", "note": os.path.basename(command[0])},
            {"bench": "compile", "case": name, "value": memory, "unit": "megabytes", "note": "largest process"}]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    build = arguments.build
    records = compile_time(build)
    records += lines(run([os.path.join(build, "bench/bench_peak")], 60))
    records += steps(build, 128, 5, 3)
    records += steps(build, 64, 15, 3)
    records += kernels(build)
    with open(arguments.out, "w", encoding="utf-8") as f:
        for record in records:
            f.write(json.dumps(record) + "\n")
    for r in records:
        print(f"{r['bench']:<18} {r['case']:<28} {r['value']:>16.5g} {r['unit']:<22} {r['note']}")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
