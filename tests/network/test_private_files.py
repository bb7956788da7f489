"""Run folders, and all that a site stores, are readable by their owner only."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_network import InProcessNetwork

import coterie as ct
from coterie.cli import main
from coterie.network.owner import Participation
from coterie.runs.files import is_private

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """Without a umask, every file is open to all unless its writer says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """The folder, files and folders in it that others than the owner can use."""
    paths = [folder, *folder.rglob("*")]
    assert len(paths) > 1
    return [str(path) for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_a_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = ["--data", "linear?clients=4&samples=8&dim=2&clusters=2", "--rounds", "2", "--quiet"]
    assert main(["run", "ifca", "--clusters", "2", *data, "--out", "mine"]) == 0
    assert main(["resume", "mine", "--rounds", "3", "--quiet"]) == 0
    assert {"config.json", "clients.csv", "metrics.jsonl"} <= set(os.listdir("mine"))
    assert main(["run", "fedavg", *data]) == 0  # runs/NAME
    for folder in (tmp_path / "mine", *(tmp_path / "runs").iterdir()):
        assert open_to_others(folder) == []


def test_searches_and_comparisons(tmp_path: Path) -> None:
    data = ["--data", "linear?clients=4&samples=8&dim=2&clusters=2", "--rounds", "1", "--quiet"]
    out = ["--out", str(tmp_path / "mine")]
    assert main(["search", "fedavg", "--over", "lr=0.1,0.01", *data, *out]) == 0
    assert main(["compare", "fedavg", "local", *data, "--out", str(tmp_path / "both")]) == 0
    for folder in (tmp_path / "mine", tmp_path / "both"):
        assert is_private(folder)  # so that nothing in it can be reached
        assert not [path for path in open_to_others(folder) if Path(path).is_file()]


def test_a_folder_that_its_owner_opened_stays_open(tmp_path: Path) -> None:
    fed = ct.data.linear(clients=4, samples=8, dim=2, clusters=2)
    ct.run(ct.FedAvg(lr=0.01), fed, "linear", rounds=1, out=tmp_path / "run")
    (tmp_path / "run").chmod(0o755)
    ct.resume(tmp_path / "run", fed, rounds=2)
    assert (tmp_path / "run" / "config.json").stat().st_mode & 0o004


def test_a_network(tmp_path: Path) -> None:
    network = InProcessNetwork(tmp_path, ct.Ditto(), options={"rounds": 1})
    network.begin().train()
    assert {"diary.jsonl", "network.json"} <= set(os.listdir(network.out))
    assert open_to_others(network.out) == []
    for name in network.names:
        state = tmp_path / "states" / name
        Participation(state).pause()
        assert {file.name for file in state.rglob("*")} >= {"terms.json", "states", "paused"}
        assert open_to_others(state) == []


def test_the_states_of_version_02_are_closed(tmp_path: Path) -> None:
    network = InProcessNetwork(tmp_path, ct.Ditto(), options={"rounds": 2})
    run = network.begin()
    run.step()
    (folder,) = (tmp_path / "states" / network.names[0]).glob("*-run-*")
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    run.step()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
