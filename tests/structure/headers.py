"""Every header compiles alone, included twice, with all warnings, on the first compiler that is there. The others compile
all headers together, and each alone only to say which one they refuse."""

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
    there = compilers(options().build, cases)
    for compiler in there:
        absent = {name for name in OPTIONAL if not compiler.run(f"#include <{name}>\n".encode())[0]}
        kept = [h for h in headers() if not absent & included(h)]
        if len(kept) < len(headers()):
            cases.note(f"{compiler.program}: without {', '.join(sorted(absent))}, {len(headers()) - len(kept)} headers are left out")
        lines = [f"#include <{h.relative_to(INCLUDE).as_posix()}>\n".encode() for h in kept]
        if compiler is not there[0]:
            good, said = compiler.run(b"".join(reversed(lines)))
            cases.check(f"{compiler.program}: {len(kept)} headers together", good, said)
            if good:
                continue
        for header, (good, said) in zip(kept, in_parallel(lambda line: compiler.run(line + line), lines)):
            cases.check(f"{compiler.program}: {header.relative_to(INCLUDE)}", good, said)

    # The check itself: a header that lacks its own includes, and one that warns, are found.
    for compiler in there:
        for what, text in (("a missing include", b"inline std::vector<int> v;\n"),
                           ("a narrowing conversion", b"inline int f(long x) { return x; }\n"),
                           ("a shadowed variable", b"inline int f(int x) { { int x = 1; return x; } }\n")):
            cases.check(f"{compiler.program} finds {what}", not compiler.run(text)[0])
    cases.finish()


if __name__ == "__main__":
    main()
