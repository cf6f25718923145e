"""The folders are the architecture: who may include whom, which file wraps which vendor header, how a header begins and how
long it may be. Also runs the check on made-up trees that break each rule, to show that it finds them."""

import pathlib
import re
import tempfile

from common import INCLUDE, Cases, headers

# What each folder may know directly; what those know, it may know too.
KNOWS = {
    "base": [],
    "layout": ["base"],
    "space": ["base"],
    "kernel": ["layout", "space"],
    "comm": ["space"],
    "tensor": ["layout", "comm"],
    "move": ["tensor"],
    "backend": ["comm", "kernel"],  # a type that bundles a space, a communicator and kernels
    "expr": ["move", "kernel", "backend"],  # convolution nodes hold a kernel's problem
    "layer": ["expr"],
    "net": ["layer"],
    "io": ["tensor", "kernel"],  # shuffles draw from kernel/random.hpp
    "train": ["net", "io"],  # checkpoints are files
    "check": ["train"],
}

# Headers of vendors, by how they begin, and the only file that may include them.
VENDORS = {
    "mpi.h": "comm/mpi_calls.hpp",
    "boost/mpi": "comm/mpi_calls.hpp",
    "oneapi/dnnl": "kernel/onednn.hpp",
    "dnnl": "kernel/onednn.hpp",
    "cuda_runtime": "space/cuda_calls.hpp",
    "cudnn": "kernel/cudnn_graph.hpp",
    "cublasLt": "kernel/cublaslt.hpp",
    "nccl": "comm/nccl.hpp",
    "hdf5": "io/hdf5_base.hpp",
    "H5": "io/hdf5_base.hpp",
    "nifti": "io/nifti_file.hpp",
    "znz": "io/nifti_file.hpp",
}

# The operating system's, where the standard library has nothing.
POSIX = {"fcntl.h", "sched.h", "sys/mman.h", "sys/resource.h", "sys/stat.h", "sys/types.h", "unistd.h"}

# Files that may choose by the preprocessor: what the build or the compiler offers. Algorithms never do.
CHOOSE = {"base/config.hpp", "comm/environment.hpp", "kernel/simd.hpp", "space/memory.hpp", "tessera.hpp", "io/hdf5_reader.hpp",
          "io/hdf5_writer.hpp", *VENDORS.values()}

MOST_LINES = 600


def closure():
    known = {}
    for folder in KNOWS:
        found, todo = set(), [folder]
        while todo:
            f = todo.pop()
            if f not in found:
                found.add(f)
                todo += KNOWS[f]
        known[folder] = found
    return known


KNOWN = closure()


def without_comments(text):
    """The text with comments blanked, line numbers kept. Strings stay; a '//' in a string is no include anyway."""
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.DOTALL)
    return re.sub(r"^\s*//.*", "", text, flags=re.MULTILINE)


def faults(include):
    """What is wrong in the tree, as {file: [text, ...]}; every header of the tree is a key."""
    result = {}
    for path in headers(include):
        name = path.relative_to(include / "tessera").as_posix()
        folder = name.split("/")[0] if "/" in name else ""
        text = path.read_text()
        wrong = result.setdefault(name, [])
        lines = text.splitlines()

        if folder and folder not in KNOWS:
            wrong.append(f"{name}: the folder {folder}/ is not in the table")
        if len(lines) > MOST_LINES:
            wrong.append(f"{name}: {len(lines)} lines, at most {MOST_LINES}")
        if not lines or not lines[0].startswith(f"// {name}: "):
            wrong.append(f"{name}:1: begins with '// {name}: ' and its purpose")
        head = text.split("#pragma once")[0]
        if "#pragma once" not in lines or re.search(r"^(?!//|\s*$)", head.rstrip("\n"), re.MULTILINE):
            wrong.append(f"{name}: '#pragma once' follows the opening comment")
        for part in ("May know", "Example"):
            if not re.search(rf"^// {part}s?:", head, re.MULTILINE):
                wrong.append(f"{name}: the opening comment lacks '// {part}: ...'")

        for number, line in enumerate(without_comments(text).splitlines(), 1):
            where = f"{name}:{number}"
            if re.match(r"\s*#\s*(if|ifdef|ifndef|elif)\b", line) and name not in CHOOSE:
                wrong.append(f"{where}: chooses by the preprocessor, which only the files in CHOOSE may")
            directive = re.match(r"\s*#\s*(?:include|include_next|import)\b\s*(.*)", line)
            if not directive:
                continue
            target = re.match(r"<([^>]+)>", directive[1])
            if not target:
                wrong.append(f"{where}: include as <folder/file>: {directive[1]}")
                continue
            fault = include_fault(name, folder, target[1], include)
            if fault:
                wrong.append(f"{where}: {fault}")
    return result


def include_fault(name, folder, target, include):
    """Why `name` may not include `target`, or None."""
    if target.startswith("tessera/"):
        target = target.removeprefix("tessera/")
        to = target.split("/")[0] if "/" in target else ""
        if not (include / "tessera" / target).is_file():
            return f"there is no tessera/{target}"
        if not folder:
            return None
        if to not in KNOWN.get(folder, ()):
            return f"{folder}/ may not know tessera/{target}; it may know {', '.join(sorted(KNOWN.get(folder, ())))}"
        return None
    for begin, wrapper in VENDORS.items():
        if target.startswith(begin):
            return None if name == wrapper else f"<{target}> belongs in {wrapper} alone"
    if re.fullmatch(r"[a-z_0-9]+", target) or target in POSIX:
        return None
    return f"<{target}> is neither Tessera's, the standard library's nor known to this test"


def head(name):
    return f"// {name}: a made-up header.\n//\n// May know: all.\n// Example: none\n#pragma once\n"


# A tree that keeps the rules, and what to write into it to break each: {what: (file, text, part of the message)}
GOOD = {
    "base/config.hpp": "#if defined(__CUDACC__)\n#endif\n#include <string>\n",
    "layout/layout.hpp": "#include <tessera/base/config.hpp>\n",
    "move/halo.hpp": "#include <tessera/layout/layout.hpp>\n// #include <mpi.h>\n/* #include <hdf5.h> */\n",
    "comm/mpi_calls.hpp": "#include <mpi.h>\n#include <boost/mpi/environment.hpp>\n",
    "tessera.hpp": "#include <tessera/move/halo.hpp>\n",
}
BAD = {
    "a lower row includes a higher one": ("layout/bad.hpp", "#include <tessera/move/halo.hpp>\n", "layout/ may not know"),
    "the lowest row includes the whole": ("base/bad.hpp", "#include <tessera/tessera.hpp>\n", "base/ may not know"),
    "spaces and tabs hide nothing": ("base/bad.hpp", " #\tinclude\t<tessera/layout/layout.hpp>\n", "base/ may not know"),
    "MPI outside its wrapper": ("move/bad.hpp", "#include <mpi.h>\n", "comm/mpi_calls.hpp alone"),
    "Boost.MPI outside its wrapper": ("tensor/bad.hpp", "#include <boost/mpi/request.hpp>\n", "comm/mpi_calls.hpp alone"),
    "oneDNN outside its wrapper": ("layer/bad.hpp", "#include <oneapi/dnnl/dnnl.hpp>\n", "kernel/onednn.hpp alone"),
    "oneDNN by its old name": ("layer/bad.hpp", "#include <dnnl.h>\n", "kernel/onednn.hpp alone"),
    "the CUDA runtime outside its wrapper": ("layer/bad.hpp", "#include <cuda_runtime.h>\n", "space/cuda_calls.hpp alone"),
    "HDF5 outside its wrapper": ("train/bad.hpp", "#include <hdf5.h>\n", "io/hdf5_base.hpp alone"),
    "niftilib outside its wrapper": ("io/bad.hpp", "#include <nifti1_io.h>\n", "io/nifti_file.hpp alone"),
    "an unknown library": ("io/bad.hpp", "#include <highfive/H5File.hpp>\n", "neither Tessera's"),
    "an include by quotes": ("move/bad.hpp", '#include "halo.hpp"\n', "include as <"),
    "a file that is not there": ("move/bad.hpp", "#include <tessera/move/none.hpp>\n", "there is no"),
    "a folder outside the table": ("util/bad.hpp", "", "not in the table"),
    "a header too long": ("base/bad.hpp", "int x;\n" * MOST_LINES, "at most"),
    "an algorithm that chooses by the preprocessor": ("expr/bad.hpp", "#ifdef __AVX2__\n#endif\n", "chooses by"),
}
BAD_HEADS = {
    "no opening comment": ("#pragma once\nint x;\n", "begins with"),
    "another file's name": ("// base/other.hpp: x.\n// May know: x\n// Example: x\n#pragma once\n", "begins with"),
    "no #pragma once": ("// base/bad.hpp: x.\n// May know: x\n// Example: x\nint x;\n", "#pragma once"),
    "code before #pragma once": ("// base/bad.hpp: x.\n// May know: x\n// Example: x\nint x;\n#pragma once\n", "#pragma once"),
    "no word on what it may know": ("// base/bad.hpp: x.\n// Example: x\n#pragma once\n", "lacks '// May know"),
    "no example": ("// base/bad.hpp: x.\n// May know: x\n#pragma once\n", "lacks '// Example"),
}


def tree_faults(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, "tessera", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return [text for wrong in faults(pathlib.Path(folder)).values() for text in wrong]


def main():
    cases = Cases("layering")
    for name, wrong in faults(INCLUDE).items():
        cases.check(name, not wrong, "\n".join(wrong))
    cases.check("there are headers", cases.total > 0)

    good = {name: head(name) + text for name, text in GOOD.items()}
    found = tree_faults(good)
    cases.check("a made-up tree that keeps the rules", not found, "\n".join(found))
    for what, (name, text, message) in BAD.items():
        found = tree_faults({**good, name: head(name) + text})
        cases.check(f"found: {what}", len(found) == 1 and message in found[0], f"expected '{message}', got {found}")
    for what, (text, message) in BAD_HEADS.items():
        found = tree_faults({**good, "base/bad.hpp": text})
        cases.check(f"found: {what}", any(message in f for f in found), f"expected '{message}', got {found}")
    cases.finish()


if __name__ == "__main__":
    main()
