"""The three runs that most tests make pages of."""

from __future__ import annotations

import pytest
from small_runs import trained

import coterie as ct


@pytest.fixture(scope="session")
def results() -> list[ct.Result]:
    how = {"lr": 0.5, "local_steps": 3}
    return [trained(m) for m in (ct.IFCA(clusters=2, **how), ct.FedAvg(**how), ct.LocalOnly(**how))]
