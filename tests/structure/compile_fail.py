"""Mistakes that must not compile, each with a message that helps.

A file of tests/compile_fail opens with lines
    // expect: REGEX            what the compiler's output must contain
    // expect(NAME): REGEX      the same for the mistake that the file makes when NAME is defined; one file may make several
    // expect-clang: REGEX      the same for clang++, where its own words differ; also with (NAME)
    // allow: N lines           the output must not be longer
With -DCONTROL the file leaves out every mistake and must compile without a warning, so that nothing else made it fail.
"""

import re

from common import ROOT, Cases, compilers, in_parallel, options

FOLDER = ROOT / "tests" / "compile_fail"


class Asked:
    """What the opening lines of a file ask for: {NAME or "": regex}, for any compiler and for clang++, and the length."""

    def __init__(self, text):
        self.expect, self.clang, self.lines = {}, {}, None
        for line in text.splitlines():
            m = re.match(r"// (expect|expect-clang|allow)(?:\((\w+)\))?: (.*\S)", line)
            if not m:
                break
            if m[1] == "allow":
                self.lines = int(m[3].split()[0])
            else:
                (self.clang if m[1] == "expect-clang" else self.expect)[m[2] or ""] = m[3]

    def regex(self, name, compiler):
        return self.clang.get(name, self.expect[name]) if compiler == "clang++" else self.expect[name]


def faults(result, regex, most_lines):
    """What is wrong with (compiled, output) of a mistake."""
    compiled, output = result
    if compiled:
        return ["compiles, but must not"]
    wrong = [] if re.search(regex, output) else [f"the output does not match '{regex}':\n{output}"]
    lines = len(output.splitlines())
    if most_lines is not None and lines > most_lines:
        wrong.append(f"{lines} lines of output, allowed are {most_lines}:\n{output}")
    return wrong


def control_faults(result):
    return [] if result[0] else [f"does not compile with -DCONTROL either:\n{result[1]}"]


def check_itself(cases, compiler):
    """The harness must reject what proves nothing."""

    def all_faults(text):
        asked = Asked(text)
        return faults(compiler.run(text.encode()), asked.expect[""], asked.lines) + control_faults(
            compiler.run(text.encode(), "-DCONTROL"))

    mistake = '#ifndef CONTROL\nstatic_assert(false, "tessera: the remedy");\n#endif\n'
    good = "// expect: the remedy\n"
    for what, text, message in (("no mistake", good + "int x;\n", "compiles, but must not"),
                                ("another message", "// expect: other words\n" + mistake, "does not match"),
                                ("too long a message", good + "// allow: 0 lines\n" + mistake, "lines of output"),
                                ("an error with CONTROL as well", good + mistake + "int x = y;\n", "-DCONTROL either")):
        found = all_faults(text)
        cases.check(f"rejected: {what}", len(found) == 1 and message in found[0], str(found))
    found = all_faults(good + "// allow: 20 lines\n" + mistake)
    cases.check("accepted: a mistake with its message", not found, str(found))


def main():
    cases = Cases("compile_fail")
    there = compilers(options().build, cases)
    check_itself(cases, there[0])

    asked = {path: Asked(path.read_text()) for path in sorted(FOLDER.glob("*.cpp"))}
    for path, a in asked.items():
        cases.check(f"{path.name} says what to expect", a.expect, "its first line is '// expect: REGEX'")
    work = [(c, path, name) for c in there for path, a in asked.items() for name in [*a.expect, "CONTROL"]]
    results = in_parallel(lambda item: item[0].run(item[1], *([f"-D{item[2]}"] if item[2] else [])), work)
    for (compiler, path, name), result in zip(work, results):
        a = asked[path]
        wrong = control_faults(result) if name == "CONTROL" else faults(result, a.regex(name, compiler.program), a.lines)
        cases.check(f"{compiler.program}: {path.name} {name}", not wrong, "\n".join(wrong))
    cases.finish()


if __name__ == "__main__":
    main()
