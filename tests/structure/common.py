"""What the structural tests share: counting, and compiling with the flags of the build."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
INCLUDE = ROOT / "include"


class Cases:
    """Counts named checks and prints those that fail, and in the end the line that tests/run.py reads."""

    kind = "structure"

    def __init__(self, name):
        self.name, self.passed, self.total = name, 0, 0

    def check(self, what, good, why=""):
        self.total += 1
        self.passed += bool(good)
        if not good:
            print(f"FAILED {what}" + (f"\n{why}" if why else ""), flush=True)

    def note(self, text):
        print(f"note: {text}", flush=True)

    def finish(self):
        print(f"tessera-tests: {self.kind}/{self.name} ranks=1 cases={self.passed}/{self.total}")
        sys.exit(0 if self.passed == self.total else 1)


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=str(ROOT / "build"), help="a configured build folder, for its compiler flags")
    return parser.parse_args()


def headers(include=INCLUDE):
    return sorted((include / "tessera").rglob("*.hpp"))


class Compiler:
    """Checks sources (no object code) with one compiler and the include paths, macros and warnings of the build."""

    def __init__(self, program, build):
        self.program = program
        self.build = pathlib.Path(build)
        commands = json.loads((self.build / "compile_commands.json").read_text())
        words = shlex.split(next(c["command"] for c in commands if c["file"].endswith("support/main.cpp")))
        self.flags, take = [], False
        for word in words:
            if take or word.startswith(("-I", "-isystem", "-D", "-std=", "-W", "-pthread")):
                self.flags.append(word)
            take = word in ("-isystem", "-I", "-D")
        if "clang" in program:
            self.flags.append("-Wno-unknown-warning-option")  # the flags may be those of another compiler

    def run(self, source, *extra, limit=600):
        """(compiled, what the compiler said). `source` is a path, or a text given as bytes; `limit` is in seconds."""
        name = "-" if isinstance(source, bytes) else str(source)
        command = [self.program, *self.flags, *extra, "-fsyntax-only", "-x", "c++", name]
        try:
            done = subprocess.run(command, cwd=self.build, input=source if isinstance(source, bytes) else None,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit)
        except subprocess.TimeoutExpired:
            return False, f"not compiled within {limit} s"
        return done.returncode == 0, done.stdout.decode(errors="replace")


def compilers(build, cases):
    """g++ and clang++, as far as they are there; at least one is."""
    there = [Compiler(c, build) for c in ("g++", "clang++") if shutil.which(c)]
    for c in ("g++", "clang++"):
        if not shutil.which(c):
            cases.note(f"{c} is not installed: nothing was compiled with it")
    cases.check("a compiler is installed", there)
    return there


def in_parallel(work, items):
    """work(item) for all items, as many at once as there are cores; the results in the order of the items."""
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(work, items))
