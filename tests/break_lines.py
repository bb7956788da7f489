"""Break a file on purpose, one small change at a time, and see whether a test notices.

    python tests/break_lines.py src/coterie/methods/ifca.py tests/methods/test_ifca.py
    python tests/break_lines.py FILE TESTS --most 40

Signs, comparisons, numbers and conditions of the file are changed in a copy of the source, and the
tests run on the copy. What no test notices is printed at the end: either a test is missing, or the
line does not matter. Nothing here is part of the test suite.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SWAPS: dict[type, str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.And: "or",
    ast.Or: "and",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}


class Break(NamedTuple):
    """One change of a source text."""

    line: int
    start: int  # in bytes from the beginning
    end: int
    new: str


def breaks(source: str) -> Iterator[Break]:
    """Every change that is tried; docstrings, annotations and settings' limits are left alone."""
    lines = [0]
    for text in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(text))

    def at(line: int, column: int) -> int:
        return lines[line - 1] + column

    def between(a: ast.expr, b: ast.expr, new: str) -> Break:
        """Replace the operator between two operands, and keep parentheses around these."""
        start, end = at(a.end_lineno or 0, a.end_col_offset or 0), at(b.lineno, b.col_offset)
        old = source.encode()[start:end]
        return Break(a.lineno, start, end, f"{')' * old.count(b')')} {new} {'(' * old.count(b'(')}")

    def whole(node: ast.expr, new: str) -> Break:
        start = at(node.lineno, node.col_offset)
        return Break(node.lineno, start, at(node.end_lineno or 0, node.end_col_offset or 0), new)

    for node in _code(ast.parse(source)):
        if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            yield between(node.left, node.right, SWAPS[type(node.op)])
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield between(node.left, node.comparators[0], SWAPS[type(node.ops[0])])
        elif isinstance(node, ast.BoolOp):
            yield between(node.values[0], node.values[1], SWAPS[type(node.op)])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield whole(node, f"({ast.unparse(node.operand)})")
        elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
            new = not node.value if isinstance(node.value, bool) else node.value + 1
            yield whole(node, repr(new))
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            yield whole(node.test, f"(not ({ast.unparse(node.test)}))")


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run: no annotations, no `setting(...)`, no subscripts of types, no f-strings."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            called = getattr(getattr(child, "func", None), "id", "")
            if isinstance(child, ast.Call) and (called == "setting" or called.endswith("Error")):
                continue
            yield child
            yield from _code(child)


def is_noticed(copy: Path, file: Path, text: bytes, tests: list[str]) -> bool:
    """Whether a test fails, or hangs, when the file has this text."""
    (copy / file.relative_to(ROOT / "src")).write_bytes(text)
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            words, cwd=ROOT, env=environment, capture_output=True, timeout=900, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> int:
    """Try the changes, show the progress, and print what was not noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--most", type=int, help="try this many changes, drawn at random")
    asked = parser.parse_args()
    file = asked.file.resolve()
    source = file.read_text()
    changes = sorted(set(breaks(source)))
    if asked.most is not None and asked.most < len(changes):
        changes = sorted(random.Random(0).sample(changes, asked.most))
    unnoticed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy)
        if is_noticed(copy, file, source.encode(), asked.tests):
            print("the tests fail on the file as it is: mend them first.")
            return 2
        for number, change in enumerate(changes, start=1):
            raw = source.encode()
            text = raw[: change.start] + change.new.encode() + raw[change.end :]
            noticed = is_noticed(copy, file, text, asked.tests)
            shown = text.decode().splitlines()[change.line - 1].strip()
            print(
                f"{number}/{len(changes)} line {change.line}: {shown}", "" if noticed else "  <--"
            )
            if not noticed:
                unnoticed.append(f"{asked.file}:{change.line}: {shown}")
    print(f"\n{len(changes) - len(unnoticed)} of {len(changes)} changes were noticed.")
    print("\n".join(unnoticed))
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
