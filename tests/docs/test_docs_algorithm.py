"""The method that "Your own algorithm" writes passes the suite that every method goes through."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_docs_run import PAGES, blocks

import test_contract as suite
from cases import brief
from coterie.core.contract import Algorithm
from coterie.methods.registry import find


def cases() -> list[Any]:
    """Every test of the suite that runs with each method, with its other parameters."""
    found = []
    for name, test in vars(suite).items():
        if name.startswith("test_") and "method" in inspect.signature(test).parameters:
            others = [
                m.args for m in test.pytestmark if m.name == "parametrize" and m.args[0] != "method"
            ]
            for given in [{word: value} for word, values in others for value in values] or [{}]:
                found.append(pytest.param(test, given, id=" ".join([name, *given.values()])))
    return found


@pytest.fixture
def method(tmp_path: Path) -> Algorithm:
    (block,) = (b for b in blocks(PAGES["algorithm"].read_text()) if b.title == "trimmed.py")
    (tmp_path / block.title).write_text(block.code)
    made: Any = find(f"{tmp_path / block.title}:Trimmed")
    return brief(made(clusters=2))


@pytest.mark.parametrize("test, given", cases())
def test_the_method_of_the_page(
    test: Callable[..., None],
    given: dict[str, str],
    method: Algorithm,
    request: pytest.FixtureRequest,
) -> None:
    wanted = inspect.signature(test).parameters.keys() - {"method", *given}
    test(method=method, **given, **{name: request.getfixturevalue(name) for name in wanted})


@pytest.mark.parametrize("attack", [suite.poisoned, "cut"], ids=["poisoned", "cut"])
def test_a_bad_upload_harms_no_one_else(
    attack: Any,
    method: Algorithm,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(suite.METHODS, "trimmed", method)
    suite.test_a_bad_upload_harms_no_one_else("trimmed", attack, caplog)
