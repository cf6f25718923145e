"""Rules of the house: nothing large in the repository."""

import pathlib
import shutil
import subprocess
import tempfile

from common import ROOT, Cases

MOST_BYTES = 1 << 20


def files(root):
    """What git tracks or would add; without git, all but hidden and build folders."""
    command = ["git", "-c", "safe.directory=*", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if shutil.which("git"):
        done = subprocess.run(command, capture_output=True)
        if done.returncode == 0:
            return [root / name for name in done.stdout.decode().split("\0") if name]
    tops = [p for p in root.iterdir() if not p.name.startswith((".", "build", "out"))]
    return [p for top in tops for p in (top.rglob("*") if top.is_dir() else [top])]


def too_large(paths):
    return [f"{p}: {p.stat().st_size} bytes, at most {MOST_BYTES}" for p in paths
            if p.is_file() and p.stat().st_size > MOST_BYTES]


def main():
    cases = Cases("house")
    there = files(ROOT)
    cases.check("there are files", len(there) > 50)
    found = too_large(there)
    cases.check("no file over 1 MiB", not found, "\n".join(found))

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "large")
        path.write_bytes(b"\0" * (MOST_BYTES + 1))
        cases.check("found: a file over 1 MiB", len(too_large([path])) == 1)
    cases.finish()


if __name__ == "__main__":
    main()
