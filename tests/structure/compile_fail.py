"""Mistakes that must not compile, each with a message that helps.

A file of tests/compile_fail begins with
    // expect: REGEX            what the compiler's output must contain
and may go on with
    // expect-clang: REGEX      the same for clang++, where its own words differ
    // allow: N lines           the output must not be longer
    // compiler: clang++        only this compiler is asked
With -DCONTROL the file leaves out the mistake and must compile without a warning, so that nothing else made it fail.
"""

import re

from common import ROOT, Cases, compilers, in_parallel, options

FOLDER = ROOT / "tests" / "compile_fail"


def directives(text):
    """The opening comment lines 'word: value' as a dictionary."""
    found = {}
    for line in text.splitlines():
        m = re.match(r"// ([a-z-]+): (.*\S)", line)
        if not m:
            break
        found[m[1]] = m[2]
    return found


def faults(said, asked, compiler):
    """What is wrong with a file that `asked` for an error, given (compiled, output) without and with -DCONTROL."""
    (compiled, output), (control, control_output) = said
    expected = asked.get("expect-clang", asked["expect"]) if compiler == "clang++" else asked["expect"]
    wrong = []
    if compiled:
        wrong.append("compiles, but must not")
    elif not re.search(expected, output):
        wrong.append(f"the output does not match '{expected}':\n{output}")
    lines = len(output.splitlines())
    if "allow" in asked and lines > int(asked["allow"].split()[0]):
        wrong.append(f"{lines} lines of output, allowed are {asked['allow']}:\n{output}")
    if not control:
        wrong.append(f"does not compile with -DCONTROL either:\n{control_output}")
    return wrong


def check_itself(cases, compiler):
    """The harness must reject what proves nothing."""

    def both(text):
        return compiler.run(text.encode()), compiler.run(text.encode(), "-DCONTROL")

    mistake = '#ifndef CONTROL\nstatic_assert(false, "tessera: the remedy");\n#endif\n'
    good, lax = {"expect": "the remedy"}, "int x;\n"
    for what, text, asked, message in (
            ("no mistake", lax, good, "compiles, but must not"),
            ("another message", mistake, {"expect": "other words"}, "does not match"),
            ("too long a message", mistake, {**good, "allow": "0 lines"}, "lines of output"),
            ("an error with CONTROL as well", mistake + "int x = y;\n", good, "-DCONTROL either")):
        found = faults(both(text), asked, compiler.program)
        cases.check(f"rejected: {what}", len(found) == 1 and message in found[0], str(found))
    found = faults(both(mistake), {**good, "allow": "20 lines"}, compiler.program)
    cases.check("accepted: a mistake with its message", not found, str(found))


def main():
    cases = Cases("compile_fail")
    there = compilers(options().build, cases)
    check_itself(cases, there[0])

    files = {}
    for path in sorted(FOLDER.glob("*.cpp")):
        asked = directives(path.read_text())
        cases.check(f"{path.name} says what to expect", "expect" in asked, "its first line is '// expect: REGEX'")
        if "expect" in asked:
            files[path] = asked
    work = [(p, c, extra) for p, asked in files.items() for c in there for extra in ((), ("-DCONTROL",))
            if asked.get("compiler", c.program) == c.program]
    said = dict(zip(work, in_parallel(lambda item: item[1].run(item[0], *item[2]), work)))
    for path, compiler, extra in work:
        if not extra:
            pair = said[path, compiler, ()], said[path, compiler, ("-DCONTROL",)]
            wrong = faults(pair, files[path], compiler.program)
            cases.check(f"{compiler.program}: {path.name}", not wrong, "\n".join(wrong))
    cases.finish()


if __name__ == "__main__":
    main()
