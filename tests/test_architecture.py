"""Arrows point one way: a method never imports an engine, the data makers or the command."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import coterie
from coterie.methods.registry import methods

SOURCE = Path(coterie.__file__).parent
# Every package and module, from the ground up: each may import only those before it, also inside
# functions.
ORDER = (
    "core",
    "optim",
    "clustering",
    "methods",
    "data",
    "models",
    "metrics",
    "aggregation",
    "engines",
    "runs",
    "serve",
    "reporting",
    "result",
    "network",
    "ranks",
    "cli",
    "__main__",
)  # fmt: skip


def imports(path: Path) -> set[str]:
    """The parts of coterie that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (
                [node.module]
                if node.module != "coterie"
                else [f"coterie.{a.name}" for a in node.names]
            )
        found |= {n.split(".")[1] for n in names if n.startswith("coterie.")}
    return found


def test_every_part_has_its_place_in_the_order():
    parts = {
        path.stem
        for path in SOURCE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert parts - {"__init__"} == set(ORDER)


@pytest.mark.parametrize("part", ORDER)
def test_a_part_imports_only_what_stands_before_it(part):
    allowed = {*ORDER[: ORDER.index(part) + 1]}
    for path in sorted((SOURCE / part).rglob("*.py")) or [SOURCE / f"{part}.py"]:
        assert imports(path) <= allowed, path.name


def test_every_method_says_who_proposed_it_and_what_each_setting_means():
    assert {"ifca", "one-shot", "fedavg", "fedavg-ft", "fedprox", "local"} <= set(methods())
    for cls in methods().values():
        assert cls.paper and cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("), cls
        assert sys.modules[cls.__module__].__doc__, cls
        assert all(f.metadata["help"] for f in fields(cls)), cls


def test_heavy_imports_wait_until_they_are_used():
    code = (
        "import sys, coterie; "
        "heavy = ('torch', 'sklearn', 'pandas', 'matplotlib', 'plotly'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
    code = (
        "import sys, coterie as ct; ct.run, ct.IFCA; "
        "heavy = ('sklearn', 'scipy', 'pandas', 'matplotlib', 'plotly', 'PIL', 'rich'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
