"""Every block of C++ in README.md and docs/*.md compiles.

A block begins with ```cpp. In the lines just above it, a comment may say how to compile it:
    <!-- scope: file -->           as it is (the default if it defines main)
    <!-- scope: namespace -->      as it is, after the includes and names below (the default for other blocks that include)
    <!-- scope: function -->       as the body of a function (the default for the rest)
    <!-- after: NAME --> ...       first what the block named by <!-- name: NAME --> declares
    <!-- no-compile: REASON -->    not at all; such blocks are reported
"""

import re

from common import ROOT, Cases, compilers, in_parallel, options

MARKER = re.compile(r"<!--\s*(scope|name|after|no-compile):\s*(.*?)\s*-->")


class Block:
    def __init__(self, where, text, marks):
        self.where, self.text, self.marks = where, text, marks

    def scope(self):
        if "scope" in self.marks:
            return self.marks["scope"]
        if re.search(r"\bint\s+main\s*\(", self.text):
            return "file"
        return "namespace" if "#include" in self.text else "function"


def blocks(name, text):
    """The blocks of C++ in a Markdown text, and what is wrong with their markers."""
    found, wrong, marks, inside, start = [], [], {}, None, 0
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"\s*(`{3,}|~{3,})\s*([\w+-]*)", line)
        if inside is None and fence:
            inside, language, start, body = fence[1], fence[2].lower(), number, []
        elif inside is not None and fence and fence[1].startswith(inside) and not fence[2]:
            if language in ("cpp", "c++", "cxx"):
                found.append(Block(f"{name}:{start}", "\n".join(body) + "\n", marks))
            marks, inside = {}, None
        elif inside is not None:
            body.append(line)
        elif MARKER.search(line):
            marks = {**marks, **dict(MARKER.findall(line))}
        elif line.strip():
            marks = {}
    if inside is not None:
        wrong.append(f"{name}:{start}: a block that does not end")
    for b in found:
        if b.scope() not in ("file", "namespace", "function"):
            wrong.append(f"{b.where}: scope '{b.scope()}' is none of file, namespace, function")
        if b.marks.get("no-compile") == "":
            wrong.append(f"{b.where}: no-compile without a reason")
    return found, wrong


def declarations(block, named):
    """The text of a block, with what it comes after in front."""
    before = block.marks.get("after")
    return (declarations(named[before], named) if before else "") + block.text


def program(block, named):
    """A translation unit that holds the block."""
    scope, text = block.scope(), declarations(block, named)
    if scope == "file":
        return text
    includes = "".join(re.findall(r"^\s*#\s*include.*\n", text, re.MULTILINE))
    rest = re.sub(r"^\s*#\s*include.*\n", "", text, flags=re.MULTILINE)
    names = "using namespace tessera;\n[[maybe_unused]] static int argc;\n[[maybe_unused]] static char** argv;\n"
    opening = "#include <tessera/tessera.hpp>\n" + includes + names
    if scope == "namespace":
        return opening + rest
    # Constants and definitions of types belong outside a function, statements inside: the block says which it is.
    return opening + "[[maybe_unused]] static void block() {\n" + rest + "}\n"


# A fragment shows a step, not a program: it may leave what it makes unused.
LENIENT = ("-Wno-unused-variable", "-Wno-unused-but-set-variable", "-Wno-unused-value", "-Wno-unused-parameter",
           "-Wno-unused-function")


def together(blocks, named):
    """One translation unit for many blocks that are not whole files, each in a namespace of its own."""
    includes, parts = [], []
    for n, b in enumerate(blocks):
        lines = program(b, named).splitlines(keepends=True)
        includes += [line for line in lines if re.match(r"\s*#\s*include", line)]
        parts += [f"namespace block_{n} {{\n", *(line for line in lines if not re.match(r"\s*#\s*include", line)), "}\n"]
    return "".join(dict.fromkeys(includes)) + "".join(parts)


def compile_all(compiler, blocks, named):
    """(compiled, what the compiler said) of each block. All at once, and each alone only if that fails."""
    parts = [b for b in blocks if b.scope() != "file"]
    alone = [b for b in blocks if b.scope() == "file"]
    said = {}
    if parts and compiler.run(together(parts, named).encode(), *LENIENT)[0]:
        said = {b: (True, "") for b in parts}
    else:
        alone = blocks
    said.update((b, compiler.run(program(b, named).encode(), *LENIENT)) for b in alone)
    return [said[b] for b in blocks]


def check_itself(cases, compiler):
    fence = "```"
    text = (f"{fence}cpp\nint main() {{ return 0; }}\n{fence}\n\n<!-- no-compile: pseudo code -->\n{fence}cpp\n???\n{fence}\n"
            f"<!-- scope: file -->\n{fence}cpp\nint y = x;\n{fence}\n{fence}sh\nls\n{fence}\n"
            f"<!-- name: a --><!-- scope: file -->\n{fence}cpp\nint one = 1;\n{fence}\n\ntext\n\n"
            f"<!-- scope: file -->\n<!-- after: a -->\n\n{fence}cpp\nint two = one + 1;\n{fence}\n")
    found, wrong = blocks("made-up.md", text)
    cases.check("finds the blocks", len(found) == 5 and not wrong, str([b.where for b in found] + wrong))
    cases.check("reads the reason", found[1].marks.get("no-compile") == "pseudo code", str(found[1].marks))
    cases.check("forgets a marker after its block", "no-compile" not in found[2].marks)
    named = {"a": found[3]}
    results = [compiler.run(program(b, named).encode())[0] for b in (found[0], found[2], found[4])]
    cases.check("accepts a program, rejects a mistake, knows what came before", results == [True, False, True], str(results))
    class Refuses:  # a stand-in that takes all but one word: what is asked together, and then alone
        asked = 0

        def run(self, text, *_):
            self.asked += 1
            return b"wrong" not in text, ""

    for second, expected in (("right", [True, True]), ("wrong", [True, False])):
        stand_in = Refuses()
        two = [Block("a", "int a;\n", {}), Block("b", f"int {second};\n", {})]
        results = [good for good, _ in compile_all(stand_in, two, {})]
        cases.check(f"two blocks, the second {second}", results == expected and stand_in.asked == (1 if all(expected) else 3))
    cases.check("rejects an unknown scope", blocks("x.md", f"<!-- scope: moon -->\n{fence}cpp\n{fence}\n")[1])
    cases.check("rejects a block without end", blocks("x.md", f"{fence}cpp\n")[1])


def main():
    cases = Cases("docs")
    compiler = compilers(options().build, cases)[0]
    check_itself(cases, compiler)
    documents = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        name = path.relative_to(ROOT).as_posix()
        cases.check(f"{name} is there", path.is_file())
        if not path.is_file():
            continue
        found, wrong = blocks(name, path.read_text())
        cases.check(f"{name}: markers", not wrong, "\n".join(wrong))
        named = {b.marks["name"]: b for b in found if "name" in b.marks}
        for b in found:
            if "no-compile" in b.marks:
                cases.note(f"{b.where} is not compiled: {b.marks['no-compile']}")
            if "after" in b.marks and b.marks["after"] not in named:
                cases.check(b.where, False, f"no block is named '{b.marks['after']}'")
        work = [b for b in found if "no-compile" not in b.marks and b.marks.get("after", "") in {"", *named}]
        documents.append((work, named))
    for (work, _), said in zip(documents, in_parallel(lambda d: compile_all(compiler, *d), documents)):
        for b, (good, output) in zip(work, said):
            cases.check(f"{b.where} ({b.scope()})", good, output)
    cases.finish()


if __name__ == "__main__":
    main()
