"""No module of another library that is private, by its name or its documentation, is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("coterie", "reproduction", "benchmarks")
FOLDERS = ("src", "reproduction", "benchmarks")
# what Flower's documentation calls public, and its simulation
FLOWER = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation")
# documented by their libraries in spite of their names
DOCUMENTED = ("os._exit", "torch._foreach_add_")
# torch has no public module for these, and its documentation uses the private ones
EXEMPT = {
    "src/coterie/core/trees.py": ("torch.utils._pytree",),
    "src/coterie/engines/dry_run.py": ("torch._subclasses", "torch.utils._python_dispatch"),
}


def is_private(name: str) -> bool:
    """Whether a dotted name is private to its library."""
    if name.startswith(DOCUMENTED):
        return False
    if name.partition(".")[0] == "flwr":
        return not name.startswith(FLOWER)
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def private_uses(source: str) -> Iterator[str]:
    """The private names of other libraries that a module imports or reaches through imports."""
    tree = ast.parse(source)
    imported: dict[str, str] = {}  # by the name in this module
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            imported |= {name.partition(".")[0]: name.partition(".")[0] for name in names}
            imported |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            imported |= {alias.asname or alias.name: name for alias, name in zip(node.names, names)}
        else:
            continue
        yield from (name for name in names if is_foreign(name) and is_private(name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, *rest = ast.unparse(node).split(".")
            name = ".".join([imported.get(first, ""), *rest])
            is_module = imported.get(first, "")[:1].islower() and is_foreign(name)
            if is_module and rest[-1].startswith("_") and is_private(name):
                yield name


def is_foreign(name: str) -> bool:
    return name.partition(".")[0] not in ("", *OURS)


def test_no_private_module_is_used() -> None:
    found = {
        str(file.relative_to(ROOT)): set(private_uses(file.read_text(encoding="utf-8")))
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
    }
    assert len(found) > 200
    for file, exempt in EXEMPT.items():
        for name in exempt:
            assert any(use.startswith(name) for use in found[file]), f"{name} is no longer needed"
        found[file] = {use for use in found[file] if not use.startswith(exempt)}
    assert {file: uses for file, uses in found.items() if uses} == {}


@pytest.mark.parametrize(
    "source, name",
    [
        ("import torch._dynamo", "torch._dynamo"),
        ("from torch import _dynamo", "torch._dynamo"),
        ("from torch.utils._pytree import tree_map", "torch.utils._pytree.tree_map"),
        ("def f():\n    import torch\n    torch._dynamo.reset()", "torch._dynamo"),
        ("import torch.nn as nn\nnn.modules.conv._ConvNd", "torch.nn.modules.conv._ConvNd"),
        (
            "from torch.nn.modules.batchnorm import _NormBase",
            "torch.nn.modules.batchnorm._NormBase",
        ),
        (
            "from flwr.supercore.address import parse_address",
            "flwr.supercore.address.parse_address",
        ),
        ("from flwr.common import Context", "flwr.common.Context"),
    ],
)
def test_private_uses_are_found(source: str, name: str) -> None:
    assert name in set(private_uses(source))


def test_public_uses_are_not() -> None:
    source = "import os, torch\nfrom flwr.app import Context\nfrom __future__ import annotations\n"
    source += "os._exit(1)\ntorch._foreach_add_([], [])\nself._x = torch.__version__\n"
    source += "from coterie.runs.load import _last_loaded\n"
    assert not set(private_uses(source))
