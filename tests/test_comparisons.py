"""`ct.compare`: the same numbers as the command, as DataFrame, LaTeX and report."""

from __future__ import annotations

import json

import numpy as np
import pytest

import coterie as ct
from coterie.cli import main
from coterie.reporting.comparison import Comparison

SPEC = "linear?clients=8&samples=20&dim=3&clusters=2"
METHODS = [ct.IFCA(clusters=2, lr=0.1), ct.FedAvg(lr=0.1), ct.LocalOnly(lr=0.1)]


def fed(seed: int = 0) -> ct.data.Federation:
    return ct.data.linear(clients=8, samples=20, dim=3, clusters=2, seed=seed)


def test_the_same_numbers_as_the_command(tmp_path, capsys):
    compared = ct.compare(METHODS, fed, rounds=4, seeds=[0, 1])
    words = ["compare", "ifca", "fedavg", "local", "--data", SPEC, "--rounds", "4", "--lr", "0.1"]
    words += ["--seeds", "2", "--clusters", "2", "--out", str(tmp_path / "runs"), "--json"]
    assert main(words) == 0
    printed = json.loads(capsys.readouterr().out)["methods"]
    table = compared.to_pandas()
    metric = compared.comparison.metric
    for method, numbers in printed.items():
        assert table.loc[method, metric] == pytest.approx(numbers[metric]["mean"], rel=1e-6)
        assert table.loc[method, f"{metric}_std"] == pytest.approx(numbers[metric]["std"], rel=1e-6)
        assert table.loc[method, "seeds"] == 2


def test_intervals_are_those_of_the_comparison():
    compared = ct.compare(METHODS, fed(), rounds=4)
    table, comparison = compared.to_pandas(), compared.comparison
    assert isinstance(comparison, Comparison)
    assert table.index.tolist() == comparison.ranking
    assert np.isnan(table.iloc[0]["behind"]) and table.iloc[0]["level"]
    for lead in comparison.leads_of_best:
        row = table.loc[lead.other]
        interval = lead.difference.low, lead.difference.high
        assert (row["behind_low"], row["behind_high"]) == interval
        assert row["behind_low"] <= row["behind"] <= row["behind_high"]


def test_latex_text_and_report(tmp_path):
    methods = [ct.FedAvg(lr=0.1), ct.FedAvg(lr=0.05)]
    compared = ct.compare(methods, fed(), rounds=2, out=tmp_path / "runs")
    latex = compared.to_latex()
    assert latex.count(r"\\") == 3 and latex.count(" & ") % 3 == 0
    assert "fedavg lr=0.1" in latex and r"\textbf" in latex and "±" not in latex
    assert "fedavg lr=0.05" in str(compared)
    assert "fedavg lr=0.1" in compared._repr_html_() and "fedavg" in repr(compared)
    page = compared.report(tmp_path / "report.html")
    assert "fedavg lr=0.05" in page.read_text()
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["fedavg", "fedavg-2"]


def test_a_diverged_method_is_last_and_does_not_stop_the_others(caplog):
    compared = ct.compare([ct.FedAvg(lr=1e6), ct.LocalOnly(lr=0.1)], fed(), rounds=30, eval_every=1)
    table = compared.to_pandas()
    assert table.index.tolist() == ["local", "fedavg"]
    assert np.isnan(table.loc["fedavg", compared.comparison.metric])
    assert "diverged" in str(compared)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"methods": []}, "at least one method"),
        ({"seed": 3}, "takes seeds"),
        ({"seeds": 0}, "at least 1"),
        ({"methods": [ct.FedAvg]}, "FedAvg is a class"),
        ({"methods": ["ifca"]}, "such as ct.IFCA"),
    ],
)
def test_mistakes(arguments, sentence):
    arguments = {"methods": METHODS[:1], "rounds": 1, **arguments}
    with pytest.raises(ct.CoterieError, match=sentence):
        ct.compare(fed=fed(), **arguments)
