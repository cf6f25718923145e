"""Ways to use Tessera from outside: installed, by pkg-config; as a Meson subproject; and by nothing but -Iinclude."""

import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile

from common import ROOT, Cases, headers, options

PROGRAM = """#include <tessera/base/extents.hpp>
#include <tessera/comm/environment.hpp>
int main(int argc, char** argv) {
  return tessera::run(argc, argv, [](tessera::Environment& env) {
    if (env.world().size() != TESSERA_EXPECTED_SIZE) throw tessera::usage_error("wrong size");
  });
}
"""
MESON = """project('user', 'cpp', default_options: ['cpp_std=c++20'])
executable('user', 'user.cpp', dependencies: dependency('tessera', fallback: 'tessera'),
           cpp_args: '-DTESSERA_EXPECTED_SIZE=1')
"""


class Shell:
    def __init__(self, cases):
        self.cases = cases

    def __call__(self, what, command, **more):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, **more)
        output = done.stdout.decode(errors="replace")
        self.cases.check(what, done.returncode == 0, f"{shlex.join(map(str, command))}\n{output}")
        return output if done.returncode == 0 else None


def installed(shell, folder):
    """Installs, compares what is there, and builds a program with the flags of pkg-config."""
    build, prefix = folder / "install", folder / "prefix"
    if shell("meson setup without tests", ["meson", "setup", build, ROOT, f"--prefix={prefix}", "-Dtests=disabled",
                                           "-Dexamples=disabled", "-Dbench=disabled"]) is None:
        return
    if shell("meson install", ["meson", "install", "-C", build]) is None:
        return
    there = sorted(p.relative_to(prefix).as_posix() for p in prefix.rglob("*") if p.is_file())
    installs = headers() + sorted((ROOT / "include" / "tessera").rglob("*.cuh"))
    expected = sorted([h.relative_to(ROOT).as_posix() for h in installs] + ["share/pkgconfig/tessera.pc"])
    shell.cases.check("the headers and tessera.pc are installed, nothing else", there == expected,
                      f"{sorted(set(there) ^ set(expected))}")
    flags = shell("pkg-config", ["pkg-config", "--cflags", "--libs", "tessera"],
                  env={**os.environ, "PKG_CONFIG_PATH": str(prefix / "share" / "pkgconfig")})
    if flags is None:
        return
    program = folder / "by_pkg_config"
    if shell("a program with the flags of pkg-config", [compiler(), "-DTESSERA_EXPECTED_SIZE=1", folder / "user.cpp", "-o", program,
                                                        *shlex.split(flags)]) is not None:
        shell("which runs", [program])


def compiler():
    return os.environ.get("CXX", "c++").split()[-1]


def subproject(shell, folder):
    (folder / "subprojects").mkdir()
    (folder / "subprojects" / "tessera").symlink_to(ROOT)
    (folder / "meson.build").write_text(MESON)
    output = shell("meson setup of a user's project", ["meson", "setup", folder / "build", folder])
    if output is None:
        return
    # A user gets the headers, not our tests.
    targets = shell("its targets", ["ninja", "-C", folder / "build", "-t", "targets", "all"]) or ""
    ours = [line for line in targets.splitlines() if "test_" in line or "heat" in line or "bench_" in line]
    shell.cases.check("no tests, examples or benchmarks in a subproject", not ours, "\n".join(ours))
    if shell("it builds", ["ninja", "-C", folder / "build"]) is not None:
        shell("its program runs", [folder / "build" / "user"])


def main():
    options()
    cases = Cases("package")
    shell = Shell(cases)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-package-"))
    try:
        (folder / "user.cpp").write_text(PROGRAM)
        installed(shell, folder)
        subproject(shell, folder)
        # Without any build system, and without MPI.
        plain = folder / "plain"
        if shell("a program with -Iinclude, without MPI", [compiler(), "-std=c++20", f"-I{ROOT / 'include'}",
                                                           "-DTESSERA_WITH_MPI=0", "-DTESSERA_EXPECTED_SIZE=1", "-pthread",
                                                           folder / "user.cpp", "-o", plain]) is not None:
            shell("which runs alone", [plain])
    finally:
        shutil.rmtree(folder)
    cases.finish()


if __name__ == "__main__":
    main()
