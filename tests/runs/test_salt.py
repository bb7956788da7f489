"""The hash of the data in a run's folder: it notices other data, and says nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from cases import federation
from coterie.runs.config import hash_with_salt


def train(out: Path, rounds: int = 1) -> dict[str, Any]:
    """Train a run and read its config."""
    ct.run(ct.FedAvg(), federation(), "mlp:8", rounds=rounds, out=out)
    config: dict[str, Any] = json.loads((out / "config.json").read_text())
    return config


def test_two_runs_on_the_same_data_have_hashes_of_their_own(tmp_path: Path) -> None:
    one, two = train(tmp_path / "one")["fingerprint"], train(tmp_path / "two")["fingerprint"]
    assert one["model"] == two["model"] and one["salt"] != two["salt"]
    plain = federation().fingerprint()
    assert len({one["data"], two["data"], plain}) == 3
    assert hash_with_salt(plain, one["salt"]) == one["data"]
    folders = [(tmp_path / name).rglob("*") for name in ("one", "two")]
    for file in (file for files in folders for file in files if file.is_file()):
        assert plain.encode() not in file.read_bytes(), file


def test_changed_data_are_noticed(tmp_path: Path) -> None:
    train(tmp_path / "run")
    assert ct.resume(tmp_path / "run", federation(), rounds=2).history[-1]["round"] == 2
    with pytest.raises(ct.CoterieError, match="the data have changed since"):
        ct.resume(tmp_path / "run", federation(seed=1), rounds=3)


def test_an_export_has_no_hash_of_the_data(tmp_path: Path) -> None:
    config = train(tmp_path / "run")
    ct.load(tmp_path / "run").export(tmp_path / "models")
    card = (tmp_path / "models" / "card.json").read_text()
    fingerprint = config["fingerprint"]
    for secret in (fingerprint["data"], fingerprint["salt"], federation().fingerprint()):
        assert secret not in card


@pytest.mark.slow
def test_a_report_knows_runs_on_the_same_data_by_their_rows(tmp_path: Path) -> None:
    """Their hashes differ; a run in memory has the rows that tell, folders have their rosters."""
    fed = ct.data.rotated("digits", clients=4, samples=20)
    how: dict[str, Any] = {"model": "softmax", "rounds": 1}
    ct.run(ct.FedAvg(), fed, out=tmp_path / "a", **how)
    ct.run(ct.FedProx(), fed, out=tmp_path / "b", **how)
    in_memory = ct.run(ct.IFCA(clusters=2), fed, **how)
    page = ct.report([in_memory, tmp_path / "a", tmp_path / "b"], tmp_path / "page.html")
    assert "fedavg" in page.read_text()
    other = ct.run(ct.IFCA(clusters=2), ct.data.rotated("digits", clients=4, samples=20, seed=1))
    with pytest.raises(ct.CoterieError, match="ran on different data"):
        ct.report([other, tmp_path / "a"], tmp_path / "other.html")
