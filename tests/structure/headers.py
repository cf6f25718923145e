"""Every header compiles alone, included twice, with all warnings, on every compiler that is there."""

import re

from common import INCLUDE, Cases, compilers, headers, in_parallel, options

# Headers of libraries that a build does without; what needs one that is missing is not compiled.
OPTIONAL = ("cuda_runtime_api.h", "cudnn.h", "cublasLt.h", "nccl.h")


def optional_includes(header, seen=None):
    """Those of OPTIONAL that the header includes, by whatever way."""
    seen = set() if seen is None else seen
    if header in seen or not header.exists():
        return set()
    seen.add(header)
    found = set()
    for name in re.findall(r"^#include <([^>]+)>", header.read_text(), re.MULTILINE):
        found |= {name} if name in OPTIONAL else optional_includes(INCLUDE / name, seen)
    return found


def main():
    cases = Cases("headers")
    all_compilers = compilers(options().build, cases)
    missing = {o for c in all_compilers for o in OPTIONAL if not c.run(f"#include <{o}>\n".encode())[0]}
    for o in sorted(missing):
        cases.note(f"{o} is not installed: the headers that need it were not compiled")
    work = [(c, h) for c in all_compilers for h in headers() if not optional_includes(h) & missing]

    def compile_alone(item):
        compiler, header = item
        line = f"#include <{header.relative_to(INCLUDE).as_posix()}>\n".encode()
        return compiler.run(line + line)

    for (compiler, header), (good, said) in zip(work, in_parallel(compile_alone, work)):
        cases.check(f"{compiler.program}: {header.relative_to(INCLUDE)}", good, said)

    # The check itself: a header that lacks its own includes, and one that warns, are found.
    for compiler in {c for c, _ in work}:
        for what, text in (("a missing include", b"inline std::vector<int> v;\n"),
                           ("a narrowing conversion", b"inline int f(long x) { return x; }\n"),
                           ("a shadowed variable", b"inline int f(int x) { { int x = 1; return x; } }\n")):
            cases.check(f"{compiler.program} finds {what}", not compiler.run(text)[0])
    cases.finish()


if __name__ == "__main__":
    main()
