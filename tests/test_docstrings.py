"""Examples in docstrings run, and public functions describe their arguments."""

from __future__ import annotations

import doctest
import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import pytest

import coterie as ct

# need optional packages, or data sets that are not embedded: docs/data.md has examples
WITHOUT_EXAMPLE = {
    f"data.{name}" for name in ("by_key", "from_partitioner", "hub", "letter_holdouts", "letters")
}


def public_objects() -> Iterator[tuple[str, Any]]:
    """Everything in `ct.*`, and in its modules what they define themselves."""
    for name in ct.__all__:
        value = getattr(ct, name)
        if not isinstance(value, types.ModuleType):
            if not isinstance(value, str):
                yield name, value
            continue
        own = getattr(value, "__all__", None)
        for inner, thing in vars(value).items():
            is_own = getattr(thing, "__module__", "").startswith(value.__name__)
            is_public = inner in own if own is not None else not inner.startswith("_")
            is_model = name == "models" and inner in ct.models.MODELS  # the text of `coterie list`
            is_code = inspect.isfunction(thing) or inspect.isclass(thing)
            if is_own and is_public and is_code and not is_model:
                yield f"{name}.{inner}", thing


OBJECTS = dict(public_objects())


@pytest.mark.parametrize("name", OBJECTS)
def test_examples_run(name: str) -> None:
    value = OBJECTS[name]
    finder = doctest.DocTestFinder(recurse=inspect.isclass(value))
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    examples = 0
    known = dict(vars(sys.modules[value.__module__]))
    for test in finder.find(value, name, globs=known):
        examples += len(test.examples)
        runner.run(test)
    assert runner.failures == 0, "see the output above"
    assert examples or name in WITHOUT_EXAMPLE, f"ct.{name} has no example"


@pytest.mark.parametrize("name", OBJECTS)
def test_arguments_are_described(name: str) -> None:
    """Settings of methods are described by their fields, data sets by a table in docs/data.md."""
    value = OBJECTS[name]
    if is_dataclass(value) or name.startswith("data."):
        return
    doc = inspect.getdoc(value) or ""
    if inspect.isclass(value) and not issubclass(value, tuple):
        if "__init__" not in vars(value) or getattr(value, "_is_protocol", False):
            return
        doc += inspect.getdoc(value.__init__) or ""
    parameters = [p for p in inspect.signature(value).parameters if p not in ("self", "args")]
    if parameters:
        assert "Args:" in doc, f"ct.{name} takes {', '.join(parameters)}"
