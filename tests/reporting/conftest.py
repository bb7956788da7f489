"""The three runs that most tests make pages of, and a folder of tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import tables, trained

import coterie as ct


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tables(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="session")
def results() -> list[ct.Result]:
    how = {"lr": 0.5, "local_steps": 3}
    return [trained(m) for m in (ct.IFCA(clusters=2, **how), ct.FedAvg(**how), ct.LocalOnly(**how))]
