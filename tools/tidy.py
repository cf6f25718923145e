"""Runs clang-tidy on each header by itself; called by tools/tidy.sh."""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "structure"))

from common import INCLUDE, Compiler, headers, in_parallel  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("headers", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    compiler = Compiler("clang++", options.build)

    def tidy(header):
        # A file that includes the header, as users do. Only what this header itself says: the others have their own turn.
        stub = stubs / (header.relative_to(INCLUDE).as_posix().replace("/", "_") + ".cpp")
        stub.write_text(f"#include <{header.relative_to(INCLUDE).as_posix()}>\n")
        done = subprocess.run(["clang-tidy", "--quiet", f"--config-file={ROOT / '.clang-tidy'}",
                               f"--header-filter={re.escape(str(header.relative_to(INCLUDE)))}$", str(stub), "--",
                               *compiler.flags], cwd=compiler.build, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return done.returncode == 0, done.stdout.decode(errors="replace")

    chosen = [h.resolve() for h in options.headers] or headers()
    with tempfile.TemporaryDirectory() as folder:
        stubs = pathlib.Path(folder)
        results = in_parallel(tidy, chosen)
    for header, (good, said) in zip(chosen, results):
        if not good:
            print(said)
    bad = sum(not good for good, _ in results)
    print(f"clang-tidy: {len(chosen) - bad} headers clean, {bad} not")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
