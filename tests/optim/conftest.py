"""Fixtures that watch or force the dual form."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coterie.optim import solvers
from coterie.optim.forms import DualForm


@pytest.fixture
def dual_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often the dual form is taken."""
    calls: list[int] = []
    real = solvers.dual_steps
    monkeypatch.setattr(solvers, "dual_steps", lambda *a, **k: calls.append(1) or real(*a, **k))
    return calls


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Takes the dual form even where it does not pay, with blocks of so many rows."""

    def forced(rows: int | None) -> None:
        monkeypatch.setattr(solvers, "choose_form", lambda *_: DualForm(rows, 1.0))

    return forced


@pytest.fixture
def always(force: Callable[[int | None], None]) -> None:
    """The dual form is taken even where it does not pay."""
    force(None)
