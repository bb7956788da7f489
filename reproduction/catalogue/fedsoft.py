"""FedSoft (Ruan, Joe-Wong 2022) on mixtures of linear models: tables 1, 3 and 6, figure 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import coterie as ct
from coterie.core.params import flatten
from coterie.data import Federation
from coterie.metrics import match_sources
from coterie.result import Result
from reproduction.claims import AtMost, Beats, Near, Rises
from reproduction.figures import curve_figure
from reproduction.figures_of_groups import weight_figure
from reproduction.spec import DataColumn, Experiment, Measured, Quantity, TableLine, TableScale
from reproduction.work import measure_scores, read_curves, train_and_measure

HELD = 2000  # images of each source on which centres are measured, at most
LOCAL = Quantity("local", "clients' own models on their training rows, %", 1, 100.0)
TEST = Quantity("accuracy", "clients' own models on their test rows, %", 1, 100.0)
WEIGHTS = Quantity("weights_off", "distance of the weights to the shares", 3, 1.0, False)
Holdouts = Mapping[str, tuple[Tensor, Tensor]]


def best_centre(source: str) -> Quantity:
    """Return the quantity "accuracy of the centre that is best on a source"."""
    return Quantity(source, f"the centre that is best on {source}, %", 1, 100.0)


def measure_on_sources(result: Result, fed: Federation, holdouts: Holdouts) -> Measured:
    """Measure the scores on test and training rows, and the accuracy of the centres on each source.

    Args:
        result: The run.
        fed: Its data.
        holdouts: By source, rows x and y, in the order of the columns of `fed.truth`.
    """
    measured = measure_scores(result, fed)
    values = {**measured.values, "local": training_accuracy(result, fed)}
    shares = client_weights(result)
    if shares is None:
        return Measured(values, measured.curves)
    accuracies = centre_accuracies(result, holdouts)
    values |= {source: float(row.max()) for source, row in zip(holdouts, accuracies)}
    truth = torch.as_tensor(fed.truth, dtype=torch.float64)
    order = match_sources(shares, truth)
    values["weights_off"] = float((shares[:, order] - truth).abs().mean())
    extra = {"weights": shares[:, order[0]].tolist(), "shares": truth[:, 0].tolist()}
    return Measured(values, measured.curves, extra)


def centre_accuracies(result: Result, holdouts: Holdouts) -> np.ndarray:
    """Return the accuracy of each centre on rows of each source, float64 [sources, K]."""
    assert result.centres is not None
    count = len(next(iter(result.centres.values())))
    table = np.empty((len(holdouts), count))
    for s, (x, y) in enumerate(holdouts.values()):
        some = slice(None, None, -(-len(y) // HELD))
        for k in range(count):
            table[s, k] = (result.predict(x[some], cluster=k) == y[some]).double().mean()
    return table


def training_accuracy(result: Result, fed: Federation) -> float:
    """Return the mean over clients of their own models' accuracy on their training rows."""
    found = []
    for i, name in enumerate(result.names):
        x, y = fed.train.client(i)
        found.append(float((result.predict(x, client=name) == y).double().mean()))
    return float(np.mean(found))


def client_weights(result: Result) -> Tensor | None:
    """Return each client's weights of the centres, float64 [N, K]; one-hot for hard groups."""
    groups = result.trained.groups
    if groups is None or result.centres is None:
        return None
    if groups.dim() == 2:
        return groups.double()
    count = len(next(iter(result.centres.values())))
    return torch.nn.functional.one_hot(groups, count).double()


PAPER = "Ruan and Joe-Wong 2022"
LOCAL_WORK: dict[str, Any] = {"lr": 0.005, "local_epochs": 10, "batch": 10, "solver": "adam"}
IN_PAPER = "FedSoft, without replacement"  # the line that is the paper's
MSE = Quantity("mse", "MSE of the clients' own models on their test rows", 2, 1.0, False)
OWN = Quantity("own", "MSE of the centre that fits a source best, mean over sources", 2, 1.0, False)
OTHER = Quantity("other", "MSE of that centre on the other sources", 2, 1.0, False)


def measure_linear_sources(result: Result, fed: Federation) -> Measured:
    """Measure the scores, the errors of the centres on the sources, and of the weights.

    A centre θ has the MSE ‖θ − θ_s‖² + σ² on rows of source s.
    """
    measured = measure_scores(result, fed)
    found = client_weights(result)
    if found is None or fed.planted is None:
        return measured
    planted = fed.planted.double()
    centres = flatten_centres(result)
    errors = torch.cdist(planted, centres).square().numpy() + 1.0  # the noise has variance 1
    source, centre = linear_sum_assignment(errors)
    own = errors[source, centre]
    other = [np.delete(errors[:, c], s).mean() for s, c in zip(source, centre)]
    shares = torch.as_tensor(fed.truth, dtype=torch.float64)[:, source]
    weights = found[:, centre]
    values = {
        "own": float(own.mean()),
        "other": float(np.mean(other)),
        "weights_off": float((weights - shares).abs().mean()),
    }
    extra = {"weights": weights[:, 0].tolist(), "shares": shares[:, 0].tolist()}
    return Measured(measured.values | values, read_curves(result), extra)


def flatten_centres(result: Result) -> torch.Tensor:
    """Return the centres of a linear model without intercept, float64 [K, d]."""
    assert result.centres is not None
    count = len(next(iter(result.centres.values())))
    each = [{name: value[k] for name, value in result.centres.items()} for k in range(count)]
    return torch.stack([flatten(one).flatten() for one in each]).double()


def methods(clusters: int) -> tuple[TableLine, ...]:
    """Return the lines of FedSoft and of the methods that it is compared with."""
    return (
        TableLine(
            label="FedSoft",
            method=ct.FedSoft(clusters=clusters, pull=1.0, select=60, **LOCAL_WORK),
            in_paper=False,
        ),
        TableLine(
            label=IN_PAPER,
            method=ct.FedSoft(clusters=clusters, pull=1.0, select=60, replace=False, **LOCAL_WORK),
        ),
        TableLine(
            label="IFCA",
            method=ct.IFCA(clusters=clusters, init="random", **LOCAL_WORK),
            in_paper=False,
        ),
        TableLine(label="FedEM", method=ct.FedEM(clusters=clusters, **LOCAL_WORK), in_paper=False),
        TableLine(label="local", method=ct.LocalOnly(**LOCAL_WORK), in_paper=False),
        TableLine(label="FedAvg, fine-tuned", method=ct.FineTuned(**LOCAL_WORK), in_paper=False),
    )


def synthetic(label: str, **data_options: Any) -> DataColumn:
    """Return a column of 100 clients that mix planted linear models."""
    return DataColumn(
        label=label,
        data="linear:fedsoft",
        data_options=data_options,
        model="linear:nobias",
        options={"rounds": 50, "eval_every": 2},
    )


def scales(*smoke_columns: str) -> dict[str, TableScale]:
    """Return the scales: five seeds, three seeds, and a few clients in some columns."""
    smoke = TableScale(
        seeds=1,
        data_options={"clients": 16},
        options={"rounds": 2},
        settings={"select": 8},
        columns=smoke_columns,
    )
    return {"full": TableScale(seeds=5), "medium": TableScale(seeds=3), "smoke": smoke}


PRINTED_OWN = {"10:90": 25.65, "30:70": 40.25, "linear": 33.0, "random": 34.6}  # mean of sources
TABLE_1 = Experiment(
    name="fedsoft.table1-synthetic",
    title="FedSoft on mixtures of two linear models",
    paper=PAPER,
    where="table 1 and figure 1, synthetic",
    lines=methods(2),
    columns=tuple(
        synthetic(mixture, mixture=mixture) for mixture in ("10:90", "30:70", "linear", "random")
    ),
    scales=scales("10:90"),
    work=train_and_measure(measure_linear_sources),
    quantities=(OWN, OTHER, WEIGHTS, MSE),
    printed={
        IN_PAPER: {
            "10:90": "21.8 to 29.5",
            "30:70": "36.3 to 44.2",
            "linear": "27.8 to 38.2",
            "random": "27.0 to 42.2",
        }
    },
    printed_also={
        "other": {IN_PAPER: {"10:90": "63.5", "30:70": "45.5", "linear": "53.1", "random": "51.7"}}
    },
    claims=(
        *(Near(IN_PAPER, mixture, mse, within=mse / 4) for mixture, mse in PRINTED_OWN.items()),
        AtMost(IN_PAPER, dict.fromkeys(PRINTED_OWN, 0.05), "0.05 off", quantity="weights_off"),
        Beats("FedEM", IN_PAPER, quantity="own"),
        Beats(IN_PAPER, "IFCA", quantity="weights_off"),
    ),
    figures={
        "": curve_figure("planted_error", "Distance of the centres to the planted ones", log=True),
        "-own": curve_figure("mse", "MSE of the clients' own models", log=True, ranges=False),
        "-rounds": curve_figure(
            "weights_error",
            "Distance of the weights to the planted mixture",
            columns=("10:90",),
            lines=(IN_PAPER, "FedEM"),
        ),
        "-weights": weight_figure("10:90", (IN_PAPER, "IFCA", "FedEM"), "the first source"),
    },
)

EIGHT = Experiment(
    name="fedsoft.table3",
    title="FedSoft on mixtures of eight linear models",
    paper=PAPER,
    where="table 3",
    lines=methods(8),
    columns=(synthetic("eight sources", clusters=8),),
    scales=scales("eight sources"),
    work=train_and_measure(measure_linear_sources),
    quantities=(OWN, OTHER, WEIGHTS, MSE),
    printed={IN_PAPER: {"eight sources": "82.0"}},
    printed_also={"other": {IN_PAPER: {"eight sources": "84.9"}}},
    claims=(
        Near(IN_PAPER, "eight sources", 82.0, within=20.5),
        Beats("FedEM", IN_PAPER, quantity="own"),
    ),
    figures={"": curve_figure("mse", "MSE of the clients' own models", log=True, ranges=False)},
)

STRENGTHS = (1, 10, 50, 100)
TABLE_6 = Experiment(
    name="fedsoft.table6",
    title="FedSoft against how far the linear models are apart",
    paper=PAPER,
    where="table 6",
    lines=methods(2),
    columns=tuple(synthetic(f"σ0={s}", mixture="random", scale=float(s)) for s in STRENGTHS),
    scales={
        **scales("σ0=1", "σ0=10"),
        "medium": TableScale(
            seeds=3, lines=("FedSoft", IN_PAPER, "FedEM", "local", "FedAvg, fine-tuned")
        ),
    },
    work=train_and_measure(measure_linear_sources),
    quantities=(MSE, OWN, WEIGHTS),
    printed={IN_PAPER: {"σ0=1": "0.6", "σ0=10": "4.96", "σ0=50": "18.8", "σ0=100": "78.3"}},
    printed_also={
        "own": {IN_PAPER: {"σ0=1": "3.7", "σ0=10": "34.6", "σ0=50": "103.8", "σ0=100": "443.6"}}
    },
    claims=(
        Rises(tuple((IN_PAPER, f"σ0={s}") for s in STRENGTHS)),
        Rises(tuple((IN_PAPER, f"σ0={s}") for s in STRENGTHS), quantity="own"),
    ),
    figures={"": curve_figure("mse", "MSE of the clients' own models", log=True, ranges=False)},
)

EXPERIMENTS = (TABLE_1, EIGHT, TABLE_6)
