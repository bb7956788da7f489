"""Methods and models by name. A new file in `methods/` needs no entry here."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError, unknown_name
from coterie.core.user_file import from_file, names_a_file

PACKAGE = "coterie.methods"


def methods() -> dict[str, type[Algorithm]]:
    """Every method that comes with Coterie, by the name typed on the command line."""
    by_name: dict[str, type[Algorithm]] = {}
    for info in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__):
        by_name |= _methods_in(importlib.import_module(f"{PACKAGE}.{info.name}"))
    return by_name


def _methods_in(module: ModuleType) -> dict[str, type[Algorithm]]:
    """The methods that a module defines: classes with a `name` of their own, not imported ones."""
    by_name: dict[str, type[Algorithm]] = {}
    for value in vars(module).values():
        if not inspect.isclass(value) or value.__module__ != module.__name__:
            continue
        if issubclass(value, Algorithm) and "name" in vars(value):
            by_name[value.name] = value
    return by_name


def find(name: str, trust: Sequence[str] | None = None) -> type[Algorithm]:
    """A method by its name, or one of your own: `file.py:Class`.

    trust: hashes of the files that may be run; None: the user has given this name.
    """
    if names_a_file(name):
        cls = from_file(name, trust)
        if not (inspect.isclass(cls) and issubclass(cls, Algorithm)):
            raise CoterieError(
                f"{name} is not a method: it must be a dataclass that inherits from ct.Algorithm."
            )
        return cls
    known = methods()
    if name not in known:
        raise unknown_name("algorithm", name, known)
    return known[name]


def model(name: str, trust: Sequence[str] | None = None) -> str | Callable[[], Any]:
    """A model's name as it is, or a factory of your own: `file.py:Net`.

    trust: hashes of the files that may be run; None: the user has given this name.
    """
    if not names_a_file(name):
        return name
    factory: Callable[[], Any] = from_file(name, trust)
    if not callable(factory):
        raise CoterieError(
            f"{name} is not a model: it must be a class or function that returns a torch nn.Module."
        )
    return factory
