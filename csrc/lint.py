"""The house style that a machine can check. Run by `make lint`; prints file:line: message.

File and function length, line length, header comments, statement-like comments, which files may
include torch, CuTe and CUDA, and that every plain .hpp compiles alone with g++.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
MAX_COLUMNS = 100
MAX_LAYOUT_COLUMNS = 120  # a line that ends in a shape comment: // (BLK_M, BLK_N, PIPE)
MAX_HEADER_LINES = 12
# Listed in CONTRIBUTING.md: the waits of one step must be readable on one screen.
LONG_FUNCTION_FILES = {"csrc/bwd/mma_step.cuh": 140, "csrc/fwd/mma.cuh": 140}

CPP_SUFFIXES = {".hpp", ".cuh", ".cu", ".cpp"}
STATEMENT_COMMENT = re.compile(
    r"^\s*//\s*("
    r"[\w:<>\[\].&*\s-]+(=|\+=|-=)[^=].*;"  # an assignment
    r"|[\w:.<>-]+\(.*\);"  # a call
    r"|(if|for|while|return|else|#include|#if|#define|printf)\b.*[;{>]"
    r"|[{}]+"
    r")\s*$"
)
Finding = tuple[Path, int, str]


def cpp_files() -> list[Path]:
    """Every C++ and CUDA source of csrc."""
    return sorted(path for path in CSRC.rglob("*") if path.suffix in CPP_SUFFIXES)


def python_files() -> list[Path]:
    """Every Python source that is part of the repository."""
    folders = ("csrc", "dash", "tests", "bench", ".ci")
    return sorted(
        [ROOT / "setup.py", *(path for name in folders for path in (ROOT / name).rglob("*.py"))]
    )


def without_comments_and_strings(text: str) -> str:
    """The text with comments and literals blanked; line breaks stay."""
    token = re.compile(
        r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'|^[ \t]*#(?:\\\n|[^\n])*",
        re.DOTALL | re.MULTILINE,
    )
    return token.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def is_container(head: str) -> bool:
    """Whether the block that `head` opens holds declarations, not statements."""
    if re.search(r"\b(namespace|extern)\b", head):
        return True
    return bool(re.search(r"\b(struct|class|union|enum|concept)\b", head)) and not re.search(
        r"\)\s*(const|noexcept|override)*\s*$", head
    )


def cpp_functions(text: str) -> Iterator[tuple[int, int]]:
    """(first line, number of lines) of each function definition."""
    code = without_comments_and_strings(text)
    blocks: list[tuple[str, int]] = []  # (kind, first line)
    head_start = 0
    for match in re.finditer(r"[{};]", code):
        char, position = match.group(), match.start()
        if char == "{":
            head = code[head_start:position]
            in_containers = all(kind == "container" for kind, _ in blocks)
            first = head_start + len(head) - len(head.lstrip())
            if is_container(head) and in_containers:
                kind = "container"
            elif in_containers and ")" in head and not head.rstrip().endswith("="):
                kind = "function"
            else:
                kind = "other"
            blocks.append((kind, code.count("\n", 0, first) + 1))
        elif char == "}" and blocks:
            kind, first_line = blocks.pop()
            if kind == "function":
                yield first_line, code.count("\n", 0, position) + 2 - first_line
        head_start = position + 1


def python_functions(text: str) -> Iterator[tuple[int, int]]:
    """(first line, number of lines without the docstring) of each function definition."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = (ast.get_docstring(node, clean=False) or "").count("\n") + 1
            yield node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1 - docstring


def check_lengths(path: Path, text: str) -> Iterator[Finding]:
    """File, function and line length."""
    lines = text.splitlines()
    if len(lines) > MAX_FILE_LINES:
        yield path, 1, f"{len(lines)} lines; at most {MAX_FILE_LINES}"
    limit = LONG_FUNCTION_FILES.get(str(path.relative_to(ROOT)), MAX_FUNCTION_LINES)
    functions = python_functions if path.suffix == ".py" else cpp_functions
    for line, length in functions(text):
        if length > limit:
            yield path, line, f"function of {length} lines; at most {limit}"
    for number, line in enumerate(lines, 1):
        is_layout = re.search(r"//\s*\(.*\)\s*$", line) is not None
        if len(line) > (MAX_LAYOUT_COLUMNS if is_layout else MAX_COLUMNS):
            yield path, number, f"line of {len(line)} columns; at most {MAX_COLUMNS}"


def check_comments(path: Path, text: str) -> Iterator[Finding]:
    """The header comment, dead code, a stray semicolon after if."""
    lines = text.splitlines()
    header = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    if not 1 <= header <= MAX_HEADER_LINES:
        yield path, 1, f"header comment of {header} lines; 1 to {MAX_HEADER_LINES} say what it is"
    for number, line in enumerate(lines, 1):
        if STATEMENT_COMMENT.match(line):
            yield path, number, "commented-out code"
        if re.match(r"\s*(if|while)\s*\(.*\);\s*$", line) and "} while" not in line:
            yield path, number, "stray ; after the condition"
    if path.suffix in {".hpp", ".cuh"} and "#pragma once" not in text:
        yield path, 1, "no #pragma once"


def check_includes(path: Path, text: str) -> Iterator[Finding]:
    """Only api/ includes torch; nothing includes torch and CuTe; a plain .hpp includes neither them
    nor CUDA (outside a __CUDACC__ block, which the g++ check proves)."""
    is_api = path.is_relative_to(CSRC / "api")
    for number, line in enumerate(text.splitlines(), 1):
        include = re.match(r"\s*#\s*include\s*[<\"]([^>\"]+)", line)
        if include is None:
            continue
        name = include.group(1)
        if name.startswith(("torch/", "ATen/", "c10/")) and not is_api:
            yield path, number, f"{name}: only csrc/api includes torch"
        is_device_header = name.startswith(("cute/", "cutlass/")) or name.endswith(".cuh")
        if is_device_header and (is_api or path.suffix in {".hpp", ".cpp"}):
            yield path, number, f"{name}: only .cuh and .cu files include CuTe and device code"
        if name.startswith("pybind11/") and path.name != "bindings.cpp":
            yield path, number, f"{name}: only schedule/bindings.cpp includes pybind11"


def plain_headers() -> list[Path]:
    """The headers that any C++20 compiler reads without CUDA: all but the operators' own."""
    return [path for path in sorted(CSRC.rglob("*.hpp")) if path.parent != CSRC / "api"]


def check_purity() -> Iterator[Finding]:
    """Each plain header compiles alone with g++, with csrc as the only include folder."""
    with tempfile.TemporaryDirectory() as folder:
        for path in plain_headers():
            source = Path(folder) / "alone.cpp"
            source.write_text(f'#include "{path.relative_to(CSRC)}"\n')
            flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{CSRC}"]
            result = subprocess.run(["g++", *flags, source], capture_output=True, text=True)
            if result.returncode:
                yield path, 1, f"does not compile alone with g++:\n{result.stderr.rstrip()}"


def findings() -> Iterator[Finding]:
    """Everything that is wrong."""
    for path in cpp_files():
        text = path.read_text()
        yield from check_lengths(path, text)
        yield from check_comments(path, text)
        yield from check_includes(path, text)
    for path in python_files():
        yield from check_lengths(path, path.read_text())
    yield from check_purity()


def main() -> int:
    """Prints the findings; returns 1 if there are any."""
    count = 0
    for path, line, message in findings():
        count += 1
        print(f"{path.relative_to(ROOT)}:{line}: {message}")
    print(f"lint: {count} finding{'' if count == 1 else 's'}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
