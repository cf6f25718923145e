"""Every header compiles alone, included twice, with all warnings, on every compiler that is there."""

from common import INCLUDE, Cases, compilers, headers, in_parallel, options


def main():
    cases = Cases("headers")
    work = [(c, h) for c in compilers(options().build, cases) for h in headers()]

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
