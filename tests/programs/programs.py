"""What the tests of whole programs share: running them under mpirun with a time limit, and counting."""

import argparse
import collections
import os
import pathlib
import shutil
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "structure"))
import common  # noqa: E402  (counting is shared with the structural tests)

Done = collections.namedtuple("Done", "status output")
TIMED_OUT = -1


class Programs(common.Cases):
    """Runs programs of a build folder in a scratch folder of their own."""

    kind = "programs"

    def __init__(self, name):
        super().__init__(name)
        parser = argparse.ArgumentParser()
        parser.add_argument("--build", default=str(ROOT / "build"), help="a build folder")
        self.build = pathlib.Path(parser.parse_args().build).absolute()
        self.folder = self.build / "tests" / "run" / f"program-{name}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def mpirun(self, ranks, program, *arguments, environment=None, limit=120, file_limit=None):
        """Exit status (TIMED_OUT if it had to be ended) and everything printed. `file_limit`: the largest file, in bytes."""
        command = [str(self.build / program), *map(str, arguments)]
        if file_limit:  # writes beyond it fail as on a full disk, once the signal is ignored
            command = ["sh", "-c", f'trap "" XFSZ; ulimit -f {file_limit // 512}; exec "$@"', "sh", *command]
        process = subprocess.Popen(["mpirun", "-n", str(ranks), *command], cwd=self.folder, text=True, errors="replace",
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   env={**os.environ, **(environment or {})}, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # mpirun takes its ranks along
            output, _ = process.communicate()
            return Done(TIMED_OUT, output + f"\nended after {limit} s")
        return Done(process.returncode, output)
