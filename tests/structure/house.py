"""Rules of the house: nothing large in the repository, no file that is not text where text belongs."""

import subprocess
import tempfile
import pathlib

from common import ROOT, Cases

MOST_BYTES = 1 << 20


def files(root):
    """What git tracks or would add; None outside a working copy."""
    done = subprocess.run(["git", "-c", "safe.directory=*", "-C", str(root), "ls-files", "-z", "--cached", "--others",
                           "--exclude-standard"], capture_output=True)
    if done.returncode != 0:
        return None
    return [root / name for name in done.stdout.decode().split("\0") if name]


def too_large(paths):
    return [f"{p}: {p.stat().st_size} bytes, at most {MOST_BYTES}" for p in paths
            if p.is_file() and p.stat().st_size > MOST_BYTES]


def main():
    cases = Cases("house")
    there = files(ROOT)
    if there is None:
        cases.note("this is no working copy of git: the size of its files was not checked")
        there = []
    found = too_large(there)
    cases.check("no file over 1 MiB", not found, "\n".join(found))

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "large")
        path.write_bytes(b"\0" * (MOST_BYTES + 1))
        cases.check("found: a file over 1 MiB", len(too_large([path])) == 1)
    cases.finish()


if __name__ == "__main__":
    main()
