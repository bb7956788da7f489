"""Methods by name. A new file in `methods/` needs no entry here."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError, unknown_name
from coterie.core.model_spec import ModelSpec
from coterie.core.user_file import is_file_spec, load_object

PACKAGE = "coterie.methods"


def methods() -> dict[str, type[Algorithm]]:
    """All methods of the library by their names on the command line.

    Example:
        >>> from coterie.methods import registry
        >>> registry.methods()["ifca"].__name__
        'IFCA'
    """
    by_name: dict[str, type[Algorithm]] = {}
    for info in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__):
        by_name |= _methods_in(importlib.import_module(f"{PACKAGE}.{info.name}"))
    return by_name


def _methods_in(module: ModuleType) -> dict[str, type[Algorithm]]:
    """The methods that a module defines: classes with a `name` of their own."""
    by_name: dict[str, type[Algorithm]] = {}
    for value in vars(module).values():
        if not inspect.isclass(value) or value.__module__ != module.__name__:
            continue
        if issubclass(value, Algorithm) and "name" in vars(value):
            by_name[value.name] = value
    return by_name


def find(name: str, trust: Sequence[str] | None = None) -> type[Algorithm]:
    """Find a method by its name, or load one from a user's file.

    Args:
        name: Such as "ifca", or "path/to/file.py:Class".
        trust: Hashes of files that may be run. None means that the user gave this name.

    Raises:
        CoterieError: If there is no such method, or the object is none.

    Example:
        >>> from coterie.methods import registry
        >>> registry.find("fedavg").paper
        'McMahan et al. 2017'
    """
    if is_file_spec(name):
        cls = load_object(name, trust)
        if not (inspect.isclass(cls) and issubclass(cls, Algorithm)):
            raise CoterieError(
                f"{name} is not a method: it must be a dataclass that inherits from ct.Algorithm."
            )
        return cls
    known = methods()
    if name not in known:
        raise unknown_name("method", name, known)
    return known[name]


def model(name: str, trust: Sequence[str] | None = None) -> str | ModelSpec | Callable[[], Any]:
    """A model's name as it is, or a model factory or `ModelSpec` from a user's file.

    Args:
        name: Such as "mlp", or "path/to/file.py:Net".
        trust: Hashes of files that may be run. None means that the user gave this name.

    Raises:
        CoterieError: If the object in the file cannot be called.

    Example:
        >>> from coterie.methods import registry
        >>> registry.model("mlp:128")
        'mlp:128'
    """
    if not is_file_spec(name):
        return name
    factory: ModelSpec | Callable[[], Any] = load_object(name, trust)
    if not callable(factory) and not isinstance(factory, ModelSpec):
        raise CoterieError(
            f"{name} is not a model: it must be a class or function that returns a torch nn.Module."
        )
    return factory
