"""Every kernel of the library compiles for the GPUs that are supported, and none keeps registers in memory. Needs nvcc, but
no GPU."""

import pathlib
import re
import shutil
import subprocess
import tempfile

from common import INCLUDE, ROOT, Cases

ARCHITECTURES = (80, 90)
FLAGS = ("-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Xcompiler=-Wno-pedantic", "-Werror=cross-execution-space-call",
         "-diag-suppress=2810", "-Xptxas", "-v", f"-I{INCLUDE}", *(f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES))
ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\d+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
                   r"(\d+) bytes spill loads", re.DOTALL)

# A kernel that cannot keep what it has in 32 registers, and one that cannot be called from a device.
SPILLS = """__global__ void __launch_bounds__(1024, 2) spills(double* p) {
  double v[64];
  for (int k = 0; k < 64; ++k) v[k] = p[threadIdx.x + 1024 * k];
  __syncthreads();
  for (int k = 0; k < 64; ++k) p[threadIdx.x + 1024 * k] = v[63 - k] * v[(k * 7) % 64];
}
"""
CALLS_HOST = """#include <cstdlib>
inline int of_the_host(int x) { return std::rand() + x; }
__global__ void calls(int* p) { *p = of_the_host(*p); }
"""


def compile_device(nvcc, source):
    """(compiled, what nvcc said)"""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([nvcc, *FLAGS, "-c", str(source), "-o", str(pathlib.Path(folder, "kernels.o"))],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900)
    return done.returncode == 0, done.stdout.decode(errors="replace")


def kernels(said):
    """[(name, architecture, bytes that it spills or keeps in memory)]"""
    return [(name, int(arch), max(int(n) for n in counts)) for name, arch, *counts in ENTRY.findall(said)]


def main():
    cases = Cases("device_code")
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if not nvcc:
        cases.note("nvcc is not installed: no device code was compiled")
        cases.check("the sources are there", (ROOT / "tests" / "gpu" / "kernels.cu").is_file())
        cases.finish()
    good, said = compile_device(nvcc, ROOT / "tests" / "gpu" / "kernels.cu")
    cases.check("the kernels compile", good, said)
    found = kernels(said)
    for arch in ARCHITECTURES:
        cases.check(f"kernels for sm_{arch}", sum(a == arch for _, a, _ in found) > 40, said)
    for name, arch, kept in found:
        cases.check(f"sm_{arch}: {name} keeps nothing in memory", kept == 0, f"{kept} bytes")

    # The check itself.
    with tempfile.TemporaryDirectory() as folder:
        bad = pathlib.Path(folder, "bad.cu")
        bad.write_text(SPILLS)
        good, said = compile_device(nvcc, bad)
        cases.check("found: a kernel that spills", good and any(kept > 0 for _, _, kept in kernels(said)), said)
        bad.write_text(CALLS_HOST)
        cases.check("found: a kernel that calls a function of the host", not compile_device(nvcc, bad)[0])
    cases.finish()


if __name__ == "__main__":
    main()
