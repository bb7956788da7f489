"""Arrows point one way: a method never imports an engine, the data makers or the command."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

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
    "augment",
    "metrics",
    "aggregation",
    "privacy",
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


# ------------------------------------------------------------------------------ modules
def module_name(path: Path) -> str:
    """ "coterie.core.errors"; of a package's __init__.py, the name of the package."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a file, also inside functions; those under `if TYPE_CHECKING:` excepted."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from runtime_nodes(node)


def imported_modules(tree: ast.AST, known: Collection[str]) -> set[str]:
    """The modules of coterie that a file imports, at its top or inside functions."""
    found = set()
    for node in runtime_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in known else node.module)
    return found & set(known)


def import_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that import each other, directly or through others."""
    names = sorted(graph)
    edges = np.array([[name in graph[other] for name in names] for other in names])
    count, component = connected_components(csr_matrix(edges), connection="strong")
    cycles = []
    for number in range(count):
        members = [names[i] for i in np.flatnonzero(component == number)]
        if len(members) > 1 or members[0] in graph[members[0]]:
            cycles.append(members)
    return sorted(cycles)


def test_no_module_imports_itself_through_others():
    trees = {module_name(path): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    graph = {name: imported_modules(tree, trees) for name, tree in trees.items()}
    assert import_cycles(graph) == []


def test_an_import_cycle_is_noticed():
    files = {
        "a": "def f():\n    from a.b import g",
        "a.b": "import a.c",
        "a.c": "if TYPE_CHECKING:\n    import a.d\nfrom a import f",
        "a.d": "from a import c",
    }
    graph = {name: imported_modules(ast.parse(text), files) for name, text in files.items()}
    assert import_cycles(graph) == [["a", "a.b", "a.c"]]


# ------------------------------------------------------------------------------ methods
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
