"""Every header compiles alone, included twice, with all warnings, on every compiler that is there."""

import re

from common import INCLUDE, Cases, compilers, headers, in_parallel, options

# Headers of libraries that the build may do without: what includes one is left out where it is not there.
OPTIONAL = ("cuda_runtime_api.h", "cudnn.h", "cublasLt.h", "nccl.h")


def included(header):
    """All headers that a header includes, Tessera's and others', by the names in its includes."""
    found, todo = set(), [header]
    while todo:
        for name in re.findall(r"^#include <(.+)>", todo.pop().read_text(), re.MULTILINE):
            if name not in found:
                found.add(name)
                if (INCLUDE / name).is_file():
                    todo.append(INCLUDE / name)
    return found


def main():
    cases = Cases("headers")
    work = []
    for compiler in compilers(options().build, cases):
        absent = {name for name in OPTIONAL if not compiler.run(f"#include <{name}>\n".encode())[0]}
        there = [h for h in headers() if not absent & included(h)]
        if len(there) < len(headers()):
            cases.note(f"{compiler.program}: without {', '.join(sorted(absent))}, {len(headers()) - len(there)} headers are left out")
        work += [(compiler, h) for h in there]

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
