"""Scores from clients' sums, against scikit-learn on the rows themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch import Tensor, nn

import coterie as ct
from coterie.core.task import Batch, Task
from coterie.metrics.scores import (
    METRICS,
    Metric,
    evaluation_row,
    main_metric,
    pool_counts,
    scores_per_client,
)
from coterie.metrics.sums import sum_over_samples


def task(kind: str, classes: int | None = None) -> Task:
    model = lambda: nn.Linear(2, classes or 1)
    return Task(model, kind, torch.zeros(1, 2), classes, torch.float64)  # type: ignore[arg-type]


def report_of(kind: str, sites: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The sums of sites, each (outputs, labels), stacked."""
    classes = sites[0][0].shape[-1] if kind == "classification" else None
    of_sites = [
        sum_over_samples(task(kind, classes), out, Batch.of(out, y, torch.float64))
        for out, y in sites
    ]
    return {name: torch.stack([sums[name] for sums in of_sites]) for name in of_sites[0]}


def together(sites: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([out for out, _ in sites]), torch.cat([y for _, y in sites])


# ------------------------------------------------------------------------------ regression
def test_errors_and_r2_are_those_of_all_rows_together() -> None:
    """Two sites on other levels: inside each the model explains nothing, over both nearly all."""
    y = torch.tensor([0.0, 2.0, 100.0, 102.0, 104.0], dtype=torch.float64)
    out = torch.tensor([1.0, 1.0, 102.0, 102.0, 102.0], dtype=torch.float64)
    row = evaluation_row(
        "regression", report_of("regression", [(out[:2], y[:2]), (out[2:], y[2:])])
    )
    assert row["r2"] == pytest.approx(reference.r2_score(y, out)) and row["r2"] > 0.99
    assert row["r2_mean"] == pytest.approx(0.0)
    assert row["mse"] == pytest.approx(reference.mean_squared_error(y, out))
    assert row["rmse"] == pytest.approx(row["mse"] ** 0.5)
    assert row["mae"] == pytest.approx(reference.mean_absolute_error(y, out))


# ------------------------------------------------------------------------------ classes
def test_the_commonest_class_is_that_of_each_client_and_of_all() -> None:
    """Three of four rows are of class 0 at one site, both rows of class 1 at the other."""
    y = [torch.tensor([0, 0, 1, 0]), torch.tensor([1, 1])]
    report = report_of("classification", [(torch.zeros(len(one), 2).double(), one) for one in y])
    assert scores_per_client("classification", report)["commonest"].tolist() == [0.75, 1.0]
    row = evaluation_row("classification", report)
    assert row["commonest"] == 0.5
    assert row["commonest_own"] == pytest.approx(5 / 6)


@pytest.mark.parametrize("classes", [2, 5, 15])
def test_scores_of_classes_are_those_of_all_rows_together(classes: int) -> None:
    rng = torch.Generator().manual_seed(classes)
    sites = []
    for n in (30, 200, 7):
        out = torch.randn(n, classes, generator=rng, dtype=torch.float64) * 2
        likely = out + torch.randn(n, classes, generator=rng, dtype=torch.float64)
        sites.append((out, likely.argmax(1)))
    report = report_of("classification", sites)
    row = evaluation_row("classification", report)
    out, y = together(sites)
    guess, shares = out.argmax(1), out.softmax(1)
    assert row["accuracy"] == pytest.approx(reference.accuracy_score(y, guess))
    assert row["balanced_accuracy"] == pytest.approx(reference.balanced_accuracy_score(y, guess))
    assert row["f1"] == pytest.approx(reference.f1_score(y, guess, average="macro"))
    assert row["loss"] == pytest.approx(reference.log_loss(y, shares, labels=range(classes)))
    squares = ((shares - nn.functional.one_hot(y, classes)) ** 2).sum(1).mean()
    assert row["brier"] == pytest.approx(float(squares) / (2 if classes == 2 else 1))
    assert ("auc" in row) == (classes == 2)
    if classes <= 12:
        confusion = pool_counts(report)["confusion"]
        np.testing.assert_array_equal(confusion, reference.confusion_matrix(y, guess))


def test_a_site_of_one_class_is_not_perfect_for_free() -> None:
    """Always guessing class 0: half right in balance, though two of three sites have no other."""
    always = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    labels = [torch.zeros(6), torch.zeros(6), torch.tensor([0.0, 0.0, 0.0, 1.0])]
    sites = [(always.expand(len(y), 2), y.long()) for y in labels]
    report = report_of("classification", sites)
    row = evaluation_row("classification", report)
    assert row["accuracy"] == pytest.approx(15 / 16)
    assert row["balanced_accuracy"] == row["balanced_accuracy_mean"] == pytest.approx(0.5)
    assert np.isnan(scores_per_client("classification", report)["f1"]).tolist() == [
        True,
        True,
        False,
    ]


# ------------------------------------------------------------------------------ odds
@pytest.mark.parametrize("shift", [0.0, -3.0])
@pytest.mark.parametrize("scale", [0.3, 1.0, 10.0])
@pytest.mark.parametrize("signal", [0.3, 2.0])
def test_auc_and_average_precision_by_bins_are_near_those_of_rows(
    signal: float, scale: float, shift: float
) -> None:
    """Also for odds that are far too timid or too bold, and for a rare class."""
    rng = np.random.default_rng(0)
    y = rng.random(4000) < 1 / (1 + np.exp(-shift))
    odds = torch.from_numpy(scale * (signal * y + rng.normal(size=4000) + shift))
    out = torch.stack([torch.zeros_like(odds), odds], 1)
    row = evaluation_row(
        "classification", report_of("classification", [(out, torch.from_numpy(y).long())])
    )
    assert row["auc"] == pytest.approx(reference.roc_auc_score(y, odds), abs=0.005)
    precision = reference.average_precision_score(y, odds)
    assert row["average_precision"] == pytest.approx(precision, abs=0.005)


def test_auc_is_over_all_rows_and_over_the_sites_that_have_both_classes() -> None:
    """Each of two sites ranks its rows rightly, on other levels; a third has one class alone."""

    def site(odds: list[float], y: list[int]) -> tuple[Tensor, Tensor]:
        column = torch.tensor(odds, dtype=torch.float64)
        return torch.stack([torch.zeros_like(column), column], 1), torch.tensor(y)

    sites = [site([-3.0, -2.0], [0, 1]), site([2.0, 3.0], [0, 1]), site([0.0], [1])]
    row = evaluation_row("classification", report_of("classification", sites))
    assert row["auc_mean"] == 1.0
    assert row["auc"] == pytest.approx(4 / 6)


def test_a_model_that_diverged_has_infinite_losses_and_counts_all_its_rows() -> None:
    out = torch.full((3, 2), torch.nan, dtype=torch.float64)
    report = report_of("classification", [(out, torch.tensor([0, 1, 1]))])
    row = evaluation_row("classification", report)
    assert row["loss"] == row["brier"] == np.inf
    assert report["scored"].sum() == report["confusion"].sum() == 3


# ------------------------------------------------------------------------------ a run
@pytest.mark.parametrize("engine", ["loop", "vectorised", "wire"])
def test_a_run_keeps_what_a_report_draws(engine: str, tmp_path) -> None:
    rng = np.random.default_rng(0)
    sizes = (9, 30, 12)
    clients = [(rng.normal(size=(n, 2)), np.arange(n) % 3) for n in sizes]
    tests = [(x[: len(x) // 2], y[: len(x) // 2]) for x, y in clients]
    fed = ct.data.from_memory(clients, test=tests)
    result = ct.run(ct.FedAvg(), fed, "softmax", rounds=2, engine=engine, out=tmp_path / "run")
    pooled = result.trained.pooled_counts
    rows = int(fed.test.sizes.sum())
    assert pooled["confusion"].shape == (3, 3) and pooled["confusion"].sum() == rows
    assert pooled["scored"][1].sum() == np.trace(pooled["confusion"])
    assert result.final["accuracy"] == pytest.approx(np.trace(pooled["confusion"]) / rows)
    read = ct.load(tmp_path / "run").trained.pooled_counts
    np.testing.assert_array_equal(read["scored"], pooled["scored"])


# ------------------------------------------------------------------------------ a new metric
def test_a_metric_is_defined_in_one_place(monkeypatch, tmp_path, capsys) -> None:
    """Declared once, it is in the rows, in clients.csv, in the terminal's table and on the page."""
    from coterie.cli import main

    spread = Metric(
        name="spread_of_targets",
        label="Spread",
        description="the root mean square of the targets",
        tasks=("regression",),
        compute=lambda sums: np.sqrt(sums["y2"] / sums["n"]),
        higher_is_better=False,
        format=".5f",
        in_table=True,
    )
    monkeypatch.setitem(METRICS, spread.name, spread)
    data = ["--data", "linear?clients=6", "--rounds", "2", "--lr", "0.01"]
    assert main(["compare", "fedavg", "local", *data, "--out", str(tmp_path / "runs")]) == 0
    folder = tmp_path / "runs" / "fedavg"
    result = ct.load(folder)
    value = result.final["spread_of_targets"]
    assert value > 0 and result.final["spread_of_targets_worst"] >= value
    assert result.scores("spread_of_targets").mean == result.final["spread_of_targets_mean"]
    assert "spread_of_targets" in (folder / "clients.csv").read_text().splitlines()[0]
    printed = capsys.readouterr().out
    assert "Spread" in printed and f"{value:.5f}" in printed
    page = ct.report(tmp_path / "runs", tmp_path / "report.html").read_text()
    assert "Spread" in page and f"{value:.5f}" in page


def test_metrics_fit_their_kind_of_task() -> None:
    assert all(name == metric.name for name, metric in METRICS.items())
    for kind in ("classification", "regression"):
        main = METRICS[main_metric(kind)]  # type: ignore[arg-type]
        assert kind in main.tasks and main.score_of_constant is not None and main.constant
