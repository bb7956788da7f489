"""Reference models with all rows in one place: what they score, and where they are shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import RidgeCV

import coterie as ct
from coterie import cli
from coterie.data.federation import Federation
from coterie.reporting.comparison import comparison_table, describe_comparison_table
from coterie.runs.references import RIDGES, fit_references, read_references, write_references


def make_tables(kind: str = "regression", sites: int = 8, rows: int = 40) -> Federation:
    """Sites whose labels differ by a level of their own."""
    rng = np.random.default_rng(0)
    frames = {}
    for i in range(sites):
        x = rng.normal(size=(rows, 2))
        y = x @ [1.0, -1.0] + 2 * (i % 2) + 0.3 * rng.normal(size=rows)
        label = y if kind == "regression" else np.where(y > 1, "yes", "no")
        frames[f"s{i}"] = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": label})
    return ct.data.from_frames(frames, "y")


def test_the_ridge_is_that_of_scikit_learn_on_all_rows() -> None:
    fed = make_tables()
    ridge, boosted, mixed = fit_references(fed, seed=3)
    x, y = fed.train.x.double().numpy(), fed.train.y.double().numpy()
    errors = RidgeCV(RIDGES).fit(x, y).predict(fed.test.x.double().numpy()) - fed.test.y.numpy()
    assert ridge["mse"] == pytest.approx(float((errors**2).mean()))
    assert [row["seed"] for row in (ridge, boosted, mixed)] == [3, 3, 3]
    # an intercept for each site explains the levels, which no column does
    assert mixed["mse"] < 0.5 * min(ridge["mse"], boosted["mse"])


def test_classes_are_scored_by_log_loss() -> None:
    fed = make_tables("classification")
    rows = fit_references(fed, seed=0)
    assert [row["method"] for row in rows] == ["logistic regression", "gradient boosting"]
    shares = torch.bincount(fed.test.y).double() / len(fed.test.y)
    assert 0 < rows[0]["log_loss"] < float(-(shares * shares.log()).sum())


def test_images_and_data_without_test_rows_have_none() -> None:
    assert fit_references(ct.data.rotated("digits", clients=4, samples=10), seed=0) == []
    rng = np.random.default_rng(0)
    clients = {f"c{i}": (rng.normal(size=(5, 2)), rng.normal(size=5)) for i in range(3)}
    assert fit_references(ct.data.from_memory(clients, test_share=0), seed=0) == []


def test_without_statsmodels_there_is_no_mixed_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        __import__("sys").modules, "statsmodels.regression.mixed_linear_model", None
    )
    names = [row["method"] for row in fit_references(make_tables(), seed=0)]
    assert names == ["ridge regression", "gradient boosting"]


def test_a_comparison_shows_them_without_ranking_them(tmp_path: Path) -> None:
    methods = [ct.FedAvg(lr=0.1), ct.LocalOnly(lr=0.1)]
    out = tmp_path / "runs"
    compared = ct.compare(methods, make_tables(), rounds=3, out=out, references=True)
    labels = [row[0] for row in comparison_table(compared.comparison).rows]
    assert labels[2:] == ["ridge regression †", "gradient boosting †", "linear mixed model †"]
    assert set(compared.comparison.ranking) == {"fedavg", "local"}
    assert "† needs all rows in one place" in describe_comparison_table(compared.comparison)
    page = compared.report(tmp_path / "page.html").read_text()
    assert "linear mixed model †" in page


def write_table(file: Path) -> None:
    """One table of all sites."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    y = x @ [1.0, 1.0] + rng.normal(size=120)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y, "site": np.arange(120) % 4})
    frame.to_csv(file, index=False)


def test_a_plain_comparison_of_a_table_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path / "t.csv")
    words = ["--data", f"table:{tmp_path / 't.csv'}", "--label", "y", "--client-column", "site"]
    words += ["--quiet", "--rounds", "2", "--json", "--out"]
    assert cli.main(["compare", *words, str(tmp_path / "all")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in shown["references"]] == [
        "ridge regression",
        "gradient boosting",
        "linear mixed model",
    ]
    assert read_references(tmp_path / "all") == shown["references"]
    # not if methods are named, or if the flag says so
    assert cli.main(["compare", "fedavg", "local", *words, str(tmp_path / "named")]) == 0
    assert json.loads(capsys.readouterr().out)["references"] == []
    assert cli.main(["compare", *words, str(tmp_path / "off"), "--no-references"]) == 0
    assert json.loads(capsys.readouterr().out)["references"] == []


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    assert read_references(tmp_path) == []
    write_references(tmp_path, [])
    assert not any(tmp_path.iterdir())
    for content in ("{", '{"rows": [{}]}', '{"rows": 3}'):
        (tmp_path / "references.json").write_text(content)
        with pytest.raises(ct.CoterieError, match="references.json is damaged"):
            read_references(tmp_path)
