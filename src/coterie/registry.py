"""Methods by name. A new file in `algorithms/` or `baselines/` is found by itself."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from coterie.contract import Algorithm
from coterie.errors import CoterieError, unknown


def methods() -> dict[str, type[Algorithm]]:
    """Every method that comes with Coterie, by the name typed on the command line."""
    found: dict[str, type[Algorithm]] = {}
    for package in ("coterie.algorithms", "coterie.baselines"):
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
            found |= _of(importlib.import_module(f"{package}.{info.name}"))
    return found


def _of(module: ModuleType) -> dict[str, type[Algorithm]]:
    """The methods that a module defines."""
    found: dict[str, type[Algorithm]] = {}
    for c in vars(module).values():
        if (
            inspect.isclass(c)
            and c.__module__ == module.__name__
            and issubclass(c, Algorithm)
            and "name" in vars(c)
        ):
            found[c.name] = c
    return found


def find(name: str) -> type[Algorithm]:
    """A method by name, or of your own: `file.py:Class`."""
    if ".py:" in name:
        cls = from_file(name)
        if not (inspect.isclass(cls) and issubclass(cls, Algorithm)):
            raise CoterieError(
                f"{name} is not a method: it must be a dataclass that inherits from ct.Algorithm."
            )
        return cls
    known = methods()
    if name not in known:
        raise unknown("algorithm", name, known)
    return known[name]


def model(name: str) -> str | Callable[[], Any]:
    """A model's name, or a factory of your own: `file.py:Net`."""
    if ".py:" not in name:
        return name
    factory: Callable[[], Any] = from_file(name)
    if not callable(factory):
        raise CoterieError(
            f"{name} is not a model: it must be a class or function that returns a torch nn.Module."
        )
    return factory


def from_file(spec: str) -> Any:
    """`path/to/file.py:Name` → that object. Your own file is run as code, as Python would."""
    path, _, name = spec.rpartition(":")
    if not Path(path).is_file():
        raise CoterieError(
            f"there is no file {path}: give the path of a Python file, then a colon and a name."
        )
    found = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    try:
        found.loader.exec_module(module)
    except Exception as e:
        raise CoterieError(f"{path} cannot be loaded: {type(e).__name__}: {e}.") from e
    if not hasattr(module, name):
        raise unknown(f"name in {path}", name, [n for n in vars(module) if not n.startswith("_")])
    return getattr(module, name)
