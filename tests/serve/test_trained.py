"""A trained run answers from its folder alone: no engine is built and no training file is read."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.cli import main
from coterie.runs.load import load_trained


@pytest.fixture(scope="module")
def trained_on_tables(tmp_path_factory):
    """A run on CSV files, whose files are then gone; and a newcomer's file."""
    base = tmp_path_factory.mktemp("tables")
    (base / "sites").mkdir()
    rng = np.random.default_rng(0)
    for i in range(6):
        x = rng.normal(size=(40, 2))
        y = x @ ([1, 1] if i % 2 else [1, -1]) > 0
        table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "outcome": np.where(y, "well", "ill")})
        table.to_csv(base / "sites" / f"site{i}.csv", index=False)
    (base / "sites" / "site0.csv").rename(base / "new.csv")
    data = ["--data", f"folder:{base / 'sites'}", "--label", "outcome"]
    how = ["--clusters", "2", "--rounds", "3", "--model", "softmax", "--quiet"]
    assert main(["run", "ifca", *data, *how, "--out", str(base / "run")]) == 0
    for file in (base / "sites").iterdir():
        file.unlink()
    return base


@pytest.fixture
def no_engine(monkeypatch):
    """Whoever builds an engine, a run or a federation fails."""

    def forbidden(*_, **__):
        raise AssertionError("this needs no engine and no rows")

    for place in (
        "coterie.engines.clients.SimulatedClients.__init__",
        "coterie.engines.wire.Wire.__init__",
        "coterie.runs.run.Run.__init__",
        "coterie.data.federation.Federation.__post_init__",
        "coterie.engines.templates.UploadTemplates.__init__",
    ):
        monkeypatch.setattr(place, forbidden)


def test_assign_and_predict_build_no_engine_and_read_no_training_file(
    trained_on_tables, no_engine, capsys
):
    base = trained_on_tables
    run, new = str(base / "run"), str(base / "new.csv")
    assert main(["assign", run, new, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["group"] in (0, 1) and len(answer["losses"]) == 2
    assert main(["predict", run, new, "--cluster", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 41
    assert main(["predict", run, new, "--support", new]) == 0
    assert main(["export", run, "--out", str(base / "models")]) == 0


def test_what_a_folder_gives_is_what_the_run_had(tmp_path):
    fed = ct.data.rotated("digits", clients=8, samples=20, angles=(0, 180), unseen=2)
    result = ct.run(ct.IFCA(clusters=2), fed, "mlp:8", rounds=2, out=tmp_path / "run")
    read = load_trained(tmp_path / "run")
    assert read.roster.names == fed.names and read.roster.unseen == 2
    assert read.roster.rows.train.tolist() == fed.train.sizes.tolist()
    assert read.roster.truth.tolist() == fed.truth.tolist()
    assert torch.equal(read.groups, result.trained.groups)
    assert read.client_scores.keys() == result.per_client.keys()
    for name, values in result.per_client.items():
        np.testing.assert_array_equal(read.client_scores[name], values)


def test_a_client_that_gave_no_scores_is_nan_in_its_place(tmp_path):
    """`per_client` has an entry for each of `names`, also for one whose answer was refused."""
    fed = ct.data.linear(clients=5, samples=10, dim=3, clusters=1, test_samples=4)
    x = fed.test.x.clone()
    x[fed.test.starts[2]] = torch.nan
    run = ct.data.Federation(fed.names, fed.train, fed.test._replace(x=x), "regression", None)
    result = ct.run(ct.FedAvg(lr=0.01), run, "linear", rounds=1)
    assert all(len(values) == 5 for values in result.per_client.values())
    assert np.isinf(result.per_client["mse"][2]) or np.isnan(result.per_client["mse"][2])
    assert np.isfinite(np.delete(result.per_client["mse"], 2)).all()


def test_only_some_clients_are_evaluated_where_that_is_asked_for():
    fed = ct.data.linear(clients=30, samples=10, dim=3, clusters=2, test_samples=4)
    result = ct.run(ct.FedAvg(lr=0.01), fed, "linear", rounds=2, eval_every=1, eval_clients=7)
    measured = ~np.isnan(result.per_client["mse"])
    assert len(measured) == 30 and measured.sum() == 7
    rows = [row["eval_bytes_up"] for row in result.history]
    everyone = ct.run(ct.FedAvg(lr=0.01), fed, "linear", rounds=2, eval_every=1)
    assert rows == [row["eval_bytes_up"] * 7 / 30 for row in everyone.history]
    expected = everyone.per_client["mse"][measured]
    np.testing.assert_allclose(result.per_client["mse"][measured], expected)


def test_an_export_of_version_0_1_is_read(tmp_path):
    """Its card had neither `format` nor a checksum; all else is the same."""
    fed = ct.data.rotated("digits", clients=8, samples=20, angles=(0, 180))
    result = ct.run(ct.IFCA(clusters=2), fed, "mlp:8", rounds=1)
    card = result.export(tmp_path / "models") / "card.json"
    content = json.loads(card.read_text())
    del content["format"], content["sha256"]
    card.write_text(json.dumps({**content, "coterie": "0.1.0"}))
    models = ct.load(tmp_path / "models")
    x, y = fed.test.client(0)
    assert models.assign(x, y).losses == result.assign(x, y).losses
