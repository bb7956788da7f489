"""Fixtures that watch or force the dual form."""

from __future__ import annotations

import pytest

from coterie.local import solvers


@pytest.fixture
def dual_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often the dual form is taken."""
    calls: list[int] = []
    real = solvers.dual_steps
    monkeypatch.setattr(solvers, "dual_steps", lambda *a, **k: calls.append(1) or real(*a, **k))
    return calls


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dual form is taken even where it does not pay."""
    monkeypatch.setattr(solvers, "dual_pays", lambda *_: True)
