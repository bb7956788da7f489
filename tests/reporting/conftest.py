"""Runs that several tests make pages of, and a folder of tables. No test may change them."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import HOW, tables, trained

import coterie as ct


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tables(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="session")
def results() -> list[ct.Result]:
    methods = (ct.IFCA(clusters=2, **HOW), ct.FedAvg(**HOW), ct.LocalOnly(**HOW))
    return [trained(method) for method in methods]


@pytest.fixture(scope="session")
def results_page(results: list[ct.Result], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "page.html"
    return ct.report(results, path).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def site_results(sites: Path) -> list[ct.Result]:
    fed = ct.data.folder(str(sites), label="outcome")
    methods = (ct.IFCA(clusters=2, **HOW), ct.FedAvg(**HOW), ct.FedSoft(clusters=2, **HOW))
    return [ct.run(method, fed, "softmax", rounds=5) for method in methods]


@pytest.fixture(scope="session")
def ditto() -> ct.Result:
    return trained(ct.Ditto(**HOW))


@pytest.fixture(scope="session")
def fedavg_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two rounds on data in memory; tests that change it copy it."""
    folder = tmp_path_factory.mktemp("fedavg") / "run"
    trained(ct.FedAvg(**HOW), folder, rounds=2)
    return folder
