"""Builds and runs all tests, and adds up what passed and failed. Called by tests/run.sh.

Every run of a test prints one line
    tessera-tests: NAME ranks=R cases=PASSED/TOTAL ...
Its cases are counted. A run that prints no such line, prints it for another number of ranks, holds no case, ends with a
status that does not fit, or outlives its time counts as one more failure. Lines that begin with "note:" are shown.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RANKS = (2, 3, 4, 6, 8)
# The folders whose tests also run as several processes.
PARALLEL = ("comm", "tensor", "move", "expr", "layer", "net", "train", "io", "examples")
# Whole programs, each with the program of the build that it needs.
PROGRAMS = {"ends": "tests/ends", "cosmoflow": "examples/cosmoflow"}
STRUCTURE = ("layering", "house", "headers", "device_code", "compile_fail", "docs", "package")
SUMMARY = re.compile(r"^tessera-tests: (\S+) ranks=(\d+) cases=(\d+)/(\d+)\b", re.MULTILINE)


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Run:
    """One command, in a session of its own so that all its processes can be ended, with its output in a file."""

    def __init__(self, name, command, ranks=1, cores=1, limit=300, directory=None):
        self.name, self.command, self.ranks, self.cores, self.limit = name, command, ranks, cores, limit
        self.directory = directory
        self.process = None
        self.timed_out = False

    def start(self, logs, environment):
        self.log = logs / (re.sub(r"[^\w.-]+", "_", self.name) + ".log")
        if self.directory:
            self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                            cwd=self.directory, env=environment, start_new_session=True)
        self.began = time.monotonic()

    def seconds(self):
        return time.monotonic() - self.began

    def members(self):
        """The processes of this run's session. mpirun gives each rank a group of its own, but the session stays."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    fields = pathlib.Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if fields[0] != "Z" and int(fields[3]) == self.process.pid:
                    found.append(int(entry))
        return found

    def end(self):
        """Ends every process of this run: politely, then not."""
        for sent, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 1.0)):
            for pid in self.members():
                try:
                    os.kill(pid, sent)
                except ProcessLookupError:
                    pass
            until = time.monotonic() + patience
            while self.members() and time.monotonic() < until:
                self.process.poll()
                time.sleep(0.05)
        self.process.wait()

    def done(self):
        if self.process.poll() is not None:
            return True
        if self.seconds() < self.limit:
            return False
        self.timed_out = True
        self.end()
        return True

    def output(self):
        return self.log.read_text(errors="replace")

    def verdict(self):
        """(passed, failed, what is wrong)"""
        status, found = self.process.returncode, SUMMARY.findall(self.output())
        if self.timed_out:
            return 0, 1, f"did not end within {self.limit} s"
        if len(found) != 1:
            return 0, 1, f"printed {len(found)} lines 'tessera-tests:' instead of one (exit status {status})"
        ranks, passed, total = (int(n) for n in found[0][1:])
        failed = total - passed
        if ranks != self.ranks:
            return passed, failed + 1, f"ran on {ranks} ranks instead of {self.ranks}"
        if total == 0:
            return 0, 1, "holds no test case"
        if failed == 0 and status != 0:
            return passed, 1, f"all cases passed, but the exit status is {status}"
        if failed and status == 0:
            return passed, failed, f"{failed} of {total} cases failed, although the exit status is 0"
        return passed, failed, f"{failed} of {total} cases failed" if failed else ""


class Suite:
    def __init__(self, options):
        self.options = options
        self.build = pathlib.Path(options.build).absolute()
        self.cores = len(os.sched_getaffinity(0))
        self.began = time.monotonic()
        self.passed = self.failed = 0
        self.wrong = []
        self.running = []

    def say(self, text):
        print(f"[{clock(time.monotonic() - self.began):>5}] {text}", flush=True)

    def environment(self, scratch):
        """Open MPI on a machine with fewer cores than ranks, as root or not; its files go where they can be removed."""
        e = dict(os.environ)
        e.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
                 OMPI_MCA_hwloc_base_binding_policy="none", OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1",
                 TMPDIR=str(scratch), OMPI_MCA_orte_tmpdir_base=str(scratch))
        if self.shared:
            e["OMPI_MCA_btl_vader_backing_directory"] = str(self.shared)
        e.setdefault("TESSERA_TIMEOUT", "60")
        return e

    def make(self):
        """Configures and builds; True if that worked."""
        log = self.build / "test-logs" / "build.log"
        self.say(f"build in {self.build}")
        run = Run("build", ["sh", str(ROOT / "tools" / "build.sh"), str(self.build)], limit=self.options.build_limit)
        run.start(log.parent, os.environ)
        self.running.append(run)
        shown = time.monotonic()
        while not run.done():
            time.sleep(0.2)
            if time.monotonic() - shown > 30:
                shown = time.monotonic()
                steps = re.findall(r"^\[\d+/\d+\]", run.output(), re.MULTILINE)
                self.say(f"  building {steps[-1] if steps else ''}")
        self.running.remove(run)
        good = run.process.returncode == 0 and not run.timed_out
        self.say(f"build {'done' if good else 'FAILED'}, {clock(run.seconds())}")
        if not good:
            print(run.output())
        return good

    def runs(self):
        """Everything there is to run."""
        o, tests = self.options, self.build / "tests"
        if not o.one_process:
            for name in STRUCTURE:
                yield Run(f"structure/{name}", [sys.executable, str(ROOT / "tests" / "structure" / f"{name}.py"), "--build",
                                                str(self.build)], cores=self.cores, limit=900)
            for name, program in PROGRAMS.items():
                if (self.build / program).exists():
                    yield Run(f"programs/{name}", [sys.executable, str(ROOT / "tests" / "programs" / f"{name}.py"),
                                                   "--build", str(self.build)], cores=self.cores, limit=900)
        programs = sorted(p for p in tests.glob("test_*") if p.is_file() and os.access(p, os.X_OK))
        for p in programs:
            yield Run(f"{p.name} 1", [str(p)], limit=o.limit, directory=tests / "run" / f"{p.name}-1")
        if not o.one_process:
            for ranks in RANKS:
                for p in programs:
                    if p.name.removeprefix("test_") in PARALLEL:
                        yield Run(f"{p.name} {ranks}", ["mpirun", "-n", str(ranks), str(p)], ranks, ranks, o.limit,
                                  tests / "run" / f"{p.name}-{ranks}")

    def finish(self, run):
        passed, failed, why = run.verdict()
        self.passed += passed
        self.failed += failed
        self.say(f"{run.name:<24} {passed:4d} passed, {failed} failed  {run.seconds():6.1f} s"
                 + (f"  FAILED: {why}" if failed else ""))
        for note in re.findall(r"^note: .*", run.output(), re.MULTILINE):
            print("        " + note)
        if failed:
            self.wrong.append(f"{run.name}: {why}")
            print(run.output(), flush=True)

    def run_all(self, logs, environment):
        """As many runs at once as the cores carry, in order."""
        waiting = [r for r in self.runs() if re.search(self.options.only, r.name)]
        if not waiting:
            self.failed += 1
            self.wrong.append(f"no test matches --only {self.options.only}")
        while waiting or self.running:
            used = sum(min(r.cores, self.cores) for r in self.running)
            while waiting and used + min(waiting[0].cores, self.cores) <= self.cores:
                run = waiting.pop(0)
                run.start(logs, environment)
                self.running.append(run)
                used += min(run.cores, self.cores)
            for run in [r for r in self.running if r.done()]:
                self.running.remove(run)
                self.finish(run)
            time.sleep(0.02)

    def main(self):
        logs = self.build / "test-logs"
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        shutil.rmtree(self.build / "tests" / "run", ignore_errors=True)
        scratch = pathlib.Path(tempfile.mkdtemp(prefix="tessera-"))
        try:
            self.shared = pathlib.Path(tempfile.mkdtemp(prefix="tessera-", dir="/dev/shm"))
        except OSError:
            self.shared = None
        try:
            if self.options.no_build or self.make():
                self.run_all(logs, self.environment(scratch))
            else:
                self.failed += 1
                self.wrong.append("the build")
        finally:
            for run in self.running:
                run.end()
            shutil.rmtree(scratch, ignore_errors=True)
            if self.shared:
                shutil.rmtree(self.shared, ignore_errors=True)
        self.say(f"end; logs are in {logs}")
        for text in self.wrong:
            print(f"FAILED {text}")
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        return 1 if self.failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], prog="tests/run.sh")
    parser.add_argument("--build", default=str(ROOT / "build"), help="the build folder")
    parser.add_argument("--only", default="", metavar="REGEX", help="only runs whose name matches, like 'comm 4' or structure")
    parser.add_argument("--no-build", action="store_true", help="run what is built already")
    parser.add_argument("--one-process", action="store_true", help="only the test programs, without mpirun")
    parser.add_argument("--limit", type=float, default=300, help="seconds one run may take")
    parser.add_argument("--build-limit", type=float, default=1500, help="seconds the build may take")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    return Suite(options).main()


if __name__ == "__main__":
    sys.exit(main())
