"""PFL-TC and PDL-TC (Werner, He, Karimireddy, Jordan, Jaggi 2022): figures 1 and 2, theorem 1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import coterie as ct
from coterie.clustering.threshold import Threshold, balls_per_point, threshold_clusters
from coterie.reporting.plots import INK
from reproduction.claims import AtMost, Beats, Rises, Steadier
from reproduction.figures import curve_figure
from reproduction.figures_of_tables import column_figure
from reproduction.result_table import ResultTable
from reproduction.spec import (
    DataColumn,
    Experiment,
    Measured,
    Quantity,
    RecordedSearch,
    TableCell,
    TableLine,
    TableScale,
)
from reproduction.work import load_federation, measure_scores, train_and_measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER = "Werner et al. 2022"
ERROR = Quantity("mse", "error (1/N)Σ‖x_i − x*‖²", 3, higher_is_better=False)
WORST = Quantity("worst", "the same, of the worst tenth of the clients", 3, higher_is_better=False)
CLUSTERS = 4
STEP: dict[str, Any] = {"lr": 0.02}
ONE = {**STEP, "local_steps": 1}


METHODS = (
    TableLine(label="PFL-TC", method=ct.PFLTC(clusters=4, **STEP)),
    TableLine(label="PDL-TC", method=ct.PDLTC(clusters=4, **STEP)),
    TableLine(
        label="IFCA(grad)", method=ct.IFCA(clusters=4, average="gradients", init="random", **STEP)
    ),
    TableLine(label="IFCA(model)", method=ct.IFCA(clusters=4, init="random", **ONE)),
    TableLine(label="Standalone", method=ct.LocalOnly(**ONE)),
    TableLine(
        label="IFCA(model), our start",
        method=ct.IFCA(clusters=4, init="updates", **ONE),
        options={"paper": False},
        in_paper=False,
    ),
    TableLine(label="global, fine-tuned", method=ct.FineTuned(**ONE), in_paper=False),
)


def regression(label: str, variant: str, **data_options: Any) -> DataColumn:
    """Return a column with four planted parameters and no noise."""
    return DataColumn(
        label=label,
        data=f"linear:{variant}",
        data_options={"test_samples": 500, **data_options},
        model="linear:nobias",
        options={"rounds": 300, "eval_every": 10},
    )


FIGURE_1 = Experiment(
    name="threshold.figure1",
    title="Threshold clustering against IFCA and training alone",
    paper=PAPER,
    where="figure 1",
    lines=METHODS,
    columns=(
        regression("9 samples", "threshold", samples=9),
        regression("30 samples", "threshold", samples=30),
    ),
    scales={
        "full": TableScale(seeds=5),
        "medium": TableScale(seeds=5),
        "smoke": TableScale(seeds=1, options={"rounds": 3}, columns=("9 samples",)),
    },
    work=train_and_measure(measure_scores),
    quantities=(ERROR, WORST),
    claims=(
        Beats("PFL-TC", "IFCA(grad)"),
        Beats("PDL-TC", "IFCA(grad)"),
        Beats("PFL-TC", "Standalone"),
        Beats("PDL-TC", "Standalone"),
        Steadier("PFL-TC", "IFCA(model)"),
        Steadier("PDL-TC", "IFCA(model)"),
    ),
    tuned=(
        RecordedSearch(
            line="PFL-TC",
            column="9 samples",
            over={"lr": (0.005, 0.01, 0.02, 0.05, 0.1)},
            best={"lr": 0.05},
            taken="0.02, the next best, is taken for all methods; no other method's step was "
            "searched for",
        ),
    ),
    figures={"": curve_figure("mse", "(1/N)·Σ‖x − x*‖²", log=True)},
)

PER_CLUSTER = (3, 6, 9, 18, 36)
FIGURE_2 = Experiment(
    name="threshold.figure2",
    title="Error against the number of clients in a cluster",
    paper=PAPER,
    where="figure 2",
    lines=(
        *(line for line in METHODS if line.label == "PFL-TC"),
        *(replace(line, in_paper=False) for line in METHODS if line.label == "Standalone"),
        TableLine(label="PDL-TC", method=ct.PDLTC(clusters=4, **STEP), in_paper=False),
        *(
            TableLine(
                label=f"PDL-TC, {rule} rule",
                method=ct.PDLTC(clusters=4, threshold=rule, **STEP),
                in_paper=False,
            )
            for rule in ("k-means", "gap")
        ),
        TableLine(label="global, fine-tuned", method=ct.FineTuned(**ONE), in_paper=False),
    ),
    columns=tuple(regression(f"N/K={n}", "threshold-figure2", clients=4 * n) for n in PER_CLUSTER),
    scales={
        "full": TableScale(seeds=5),
        "medium": TableScale(seeds=5),
        "smoke": TableScale(seeds=1, options={"rounds": 3}, columns=("N/K=3", "N/K=6")),
    },
    work=train_and_measure(measure_scores),
    quantities=(ERROR, WORST),
    claims=(
        Rises(tuple(("PFL-TC", f"N/K={n}") for n in PER_CLUSTER), falls=True),
        Rises(tuple(("PDL-TC", f"N/K={n}") for n in PER_CLUSTER), falls=True),
    ),
    figures={"": column_figure("(1/N)·Σ‖x − x*‖²", log=True)},
)


# ------------------------------------------------------------------------------ why figure 2
def own_share_of_balls(cell: TableCell, folder: Path) -> Measured:
    """Measure the share of a client's own cluster in PDL-TC's balls in the first round."""
    fed = load_federation(cell)
    rows = [fed.train.client(i) for i in range(len(fed))]
    # the gradients of the mean squared error at 0, from which runs start all but exactly
    momenta = torch.stack([-2 / len(y) * (x.T @ y.flatten()) for x, y in rows]).double()
    rng = torch.Generator().manual_seed(cell.seed)
    weights = balls_per_point(momenta, CLUSTERS, rng, Threshold("quantile")).share.abs()
    truth = torch.as_tensor(fed.truth)
    own = torch.where(truth[:, None] == truth[None, :], weights, 0.0)
    return Measured({"own": float((own.sum(1) / weights.sum(1)).mean())})


BALLS = Experiment(
    name="threshold.balls",
    title="How much of a client's ball is its own cluster",
    paper=PAPER,
    where="beside figure 2",
    lines=tuple(
        TableLine(
            label=f"{samples} samples",
            method=ct.PDLTC(clusters=CLUSTERS),
            data_options={"samples": samples},
            in_paper=False,
        )
        for samples in (10, 40, 160)
    ),
    columns=FIGURE_2.columns,
    scales={
        "full": TableScale(seeds=20),
        "medium": TableScale(seeds=20),
        "smoke": TableScale(seeds=1),
    },
    work=own_share_of_balls,
    quantities=(Quantity("own", "share of the own cluster in a ball, %", 1, 100.0),),
    claims=(
        Rises(tuple(("10 samples", column.label) for column in FIGURE_2.columns), falls=True),
        Beats("40 samples", "10 samples"),
    ),
    figures={"": column_figure("Share of the own cluster in a ball, %")},
)

DIM = 10
POINTS = 36


def clustering_error(cell: TableCell, folder: Path) -> Measured:
    """Run threshold clustering alone on points around four centres at distance Δ = 1.

    Measures the mean squared distance of the estimates from the true centres. The line "oracle" has
    that of the means of the true clusters.
    """
    spread = float(cell.data_options["spread"])  # ρ/Δ, where Δ = 1
    draw = np.random.default_rng(cell.seed)
    centres = np.eye(CLUSTERS, DIM) / np.sqrt(2)  # at distance 1 from each other
    truth = np.arange(POINTS) % CLUSTERS
    points = centres[truth] + spread * draw.standard_normal((POINTS, DIM)) / np.sqrt(DIM)
    means = np.stack([points[truth == k].mean(0) for k in range(CLUSTERS)])
    estimates = means
    if cell.line.label != "oracle":
        rounds = int(cell.options["moves"])
        rng = torch.Generator().manual_seed(cell.seed)
        how = Threshold(str(cell.options["rule"]), rounds=rounds)
        found = threshold_clusters(torch.from_numpy(points), CLUSTERS, rng, how)
        estimates = found.share.numpy() @ points
    apart = ((centres[:, None] - estimates[None]) ** 2).sum(-1)
    return Measured({"error": float(apart.min(1).mean())})


def rule_line(label: str, rule: str, moves: int) -> TableLine:
    """Return a line for a rule of the threshold and a number of moves M."""
    method = ct.PFLTC(clusters=CLUSTERS, threshold=rule, moves=moves)
    return TableLine(label=label, method=method, options={"rule": rule, "moves": moves})


CENTRES = Quantity("error", "squared error of the centres (Δ = 1)", 4, higher_is_better=False)
SPREADS = (0.05, 0.1, 0.2, 0.3, 0.5)
BOUNDS = {f"ρ/Δ={s}": s**3 + s * s / (POINTS / CLUSTERS) for s in SPREADS}


def lower_bound(spread: float) -> float:
    """Return the lower bound δ²p²/4 of theorem 2's two-point instance, for Δ = 1."""
    mean = 2 * spread**2 / (np.sqrt(4 * spread**2 + 1) + 1)  # δp
    return float(mean**2 / 4)


def draw_bounds(axes: Axes, results: ResultTable) -> None:
    """Draw the bounds of theorems 1 and 2 into a figure."""
    spreads = [s for s in SPREADS if f"ρ/Δ={s}" in results.columns]
    upper = [BOUNDS[f"ρ/Δ={s}"] for s in spreads]
    lower = [lower_bound(s) for s in spreads]
    axes.plot(spreads, upper, ":", color=INK, label="ρ³/Δ + ρ²/n, theorem 1 without its constant")
    axes.plot(spreads, lower, "--", color=INK, label="δ²p²/4, the instance of theorem 2")
    axes.legend(frameon=False, fontsize=9, loc="upper left")


THEOREM_1 = Experiment(
    name="threshold.theorem1",
    title="Threshold clustering alone: error of the centres against ρ/Δ",
    paper=PAPER,
    where="theorem 1",
    lines=(
        rule_line("half, M=50", "half", 50),
        rule_line("half, M=5", "half", 5),
        rule_line("half, M=1", "half", 1),
        rule_line("gap, M=50", "gap", 50),
        rule_line("theory, M=50", "theory", 50),
        TableLine(label="oracle", method=ct.PFLTC(clusters=CLUSTERS)),
    ),
    columns=tuple(
        DataColumn(label=f"ρ/Δ={s}", data="points", data_options={"spread": s}) for s in SPREADS
    ),
    scales={
        "full": TableScale(seeds=30),
        "medium": TableScale(seeds=30),
        "smoke": TableScale(seeds=2),
    },
    work=clustering_error,
    quantities=(CENTRES,),
    printed={
        "oracle": {f"ρ/Δ={s}": f"{s * s / (POINTS / CLUSTERS):.4f}" for s in SPREADS},
        "half, M=50": {column: f"{bound:.4f}" for column, bound in BOUNDS.items()},
    },
    claims=(
        Rises(tuple(("half, M=50", f"ρ/Δ={s}") for s in SPREADS)),
        AtMost("half, M=50", BOUNDS, "ρ³/Δ + ρ²/n"),
        AtMost("theory, M=50", BOUNDS, "ρ³/Δ + ρ²/n"),
    ),
    figures={"": column_figure("Squared error of the centres", log=True, also=draw_bounds)},
)

EXPERIMENTS = (FIGURE_1, FIGURE_2, BALLS, THEOREM_1)
