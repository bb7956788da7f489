"""Arrows point one way: a method never imports an engine, the data makers or the command."""

from __future__ import annotations

import ast
import re
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
from coterie.cli.commands import COMMANDS, NETWORK_COMMANDS
from coterie.core.contract import Algorithm
from coterie.data import makers
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
    "comparisons",
    "checks",
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
    trees = parse_package()
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


# ------------------------------------------------------------------------------ signs of size
# Modules that only one other module imports, besides those found by name: only to be lowered.
MOST_SINGLE_IMPORTERS = 29
LEAST_DOCSTRINGS = 0.2
CALLED_FROM_OUTSIDE = {
    "groups_table": "for users of a Result",
    "to_latex": "for users of a MethodComparison",
    "_repr_html_": "Jupyter calls it",
    "setup_context": "torch.autograd.Function calls it",
}


def parse_package() -> dict[str, ast.Module]:
    """The syntax tree of each module, by name."""
    return {module_name(path): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}


def importers(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Which modules use each module.

    A name that a package imports from its module in order to export it counts for the modules that
    import it from the package.
    """
    exported = {
        f"{package}.{alias.asname or alias.name}": node.module
        for package in trees
        for node in trees[package].body
        if isinstance(node, ast.ImportFrom) and (SOURCE.parent / package.replace(".", "/")).is_dir()
        for alias in node.names
    }
    users: dict[str, set[str]] = {name: set() for name in trees}
    for user, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                if name not in trees:
                    name = exported.get(name, name.rpartition(".")[0])
                if name in trees and user != name:
                    users[name].add(user)
    return users


def found_by_name() -> set[str]:
    """Modules that are imported by the name of a command, a method or a data set."""
    commands = [c.function for c in (*COMMANDS.values(), *NETWORK_COMMANDS.values()) if c.function]
    found = {f"coterie.cli.{place.partition('.')[0]}" for place in commands}
    found |= {cls.__module__ for cls in methods().values()}
    return found | {maker.__module__ for maker, _ in makers().values()}


def test_few_modules_have_a_single_importer():
    """A module that only one other needs is a part of it, unless both together are too long."""
    trees = parse_package()
    exempt = found_by_name() | {m for m in trees if (SOURCE.parent / m.replace(".", "/")).is_dir()}
    single = sorted(m for m, users in importers(trees).items() if len(users) == 1)
    single = [m for m in single if m not in exempt]
    assert len(single) <= MOST_SINGLE_IMPORTERS, f"merge one of {single}"


def test_importers_are_found_through_their_package():
    trees = {
        "coterie": ast.parse("from coterie.core import f\nfrom coterie.core.call import g"),
        "coterie.core": ast.parse("from coterie.core.call import f"),
        "coterie.core.call": ast.parse("import coterie.core.errors"),
        "coterie.core.errors": ast.parse(""),
    }
    users = importers(trees)
    assert users["coterie.core.call"] == {"coterie", "coterie.core"}
    assert users["coterie.core.errors"] == {"coterie.core.call"}


def test_class_names_are_unique():
    names = [
        node.name
        for tree in parse_package().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def docstrings(tree: ast.AST) -> list[ast.Constant]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, documented)]
    firsts = [body[0].value for body in bodies if body and isinstance(body[0], ast.Expr)]
    return [first for first in firsts if isinstance(first, ast.Constant)]


def names_used(tree: ast.AST) -> set[str]:
    """The names that code reads, and the words of its strings; docstrings and definitions not."""
    documented = {id(node) for node in docstrings(tree)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and id(node) not in documented:
            found |= set(re.findall(r"\w+", str(node.value)))
    return found


def unused_functions(trees: Collection[ast.AST], templates: str) -> list[str]:
    """The functions and methods whose names occur nowhere else, and that nothing registers."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [n for tree in trees for n in ast.walk(tree) if isinstance(n, functions)]
    registers = lambda decorator: isinstance(decorator, ast.Call)  # @register("name")
    defined = {n.name for n in nodes if not any(map(registers, n.decorator_list))}
    used = set(re.findall(r"\w+", templates)).union(*map(names_used, trees))
    return sorted(name for name in defined - used if not name.endswith("__"))


def test_every_function_has_a_caller():
    templates = "\n".join(path.read_text() for path in SOURCE.rglob("*.jinja"))
    assert unused_functions(parse_package().values(), templates) == sorted(CALLED_FROM_OUTSIDE)


def test_a_function_without_a_caller_is_noticed():
    code = 'def f():\n    """Not g."""\n    h()\ndef g(): f\ndef h(): ...\ndef k(): ...\n'
    code += '@register("m")\ndef m(): ...'
    assert unused_functions([ast.parse(code)], "{{ k() }}") == ["g"]


def test_a_fifth_of_the_lines_are_docstrings():
    """Of docstrings and code, without blank lines and comments between the code."""
    documented = code = 0
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        spans = [(node.lineno, node.end_lineno) for node in docstrings(ast.parse(text))]
        inside = {number for first, last in spans for number in range(first, last + 1)}
        documented += len(inside)
        for number, line in enumerate(text.splitlines(), start=1):
            is_code = line.strip() and not line.strip().startswith("#")
            code += bool(is_code and number not in inside)
    assert documented / (documented + code) >= LEAST_DOCSTRINGS


# ------------------------------------------------------------------------------ methods
def test_every_method_says_who_proposed_it_and_what_each_setting_means():
    assert {"ifca", "one-shot", "fedavg", "fedavg-ft", "fedprox", "local"} <= set(methods())
    for cls in methods().values():
        assert cls.paper and cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("), cls
        assert sys.modules[cls.__module__].__doc__, cls
        assert all(f.metadata["help"] for f in fields(cls)), cls


def test_the_report_can_name_the_models_of_every_method_without_groups():
    for cls in methods().values():
        has_groups = cls.groups is not Algorithm.groups or cls.is_decentralised
        assert has_groups or cls.scope != "cluster", cls
        assert bool(cls.summary) == (cls.scope != "cluster"), cls


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
