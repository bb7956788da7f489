"""IFCA (Ghosh et al. 2022), figure 3: share of random starts that succeed, on linear regression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import coterie as ct
from coterie.data.spec import load
from coterie.metrics import planted_error
from reproduction.catalogue.ifca import PAPER
from reproduction.claims import Rises
from reproduction.figures_of_tables import heat_map_figure
from reproduction.many_starts import EqualRows, PlantedGroups, run_starts
from reproduction.spec import (
    DataColumn,
    Experiment,
    Measured,
    Quantity,
    TableCell,
    TableLine,
    TableScale,
    Work,
)


def success(steps: tuple[float, ...], starts: int) -> Work:
    """Return work that tries starts and step sizes until one finds the planted parameters.

    Args:
        steps: Step sizes, in the order in which they are tried.
        starts: Number of random starts.
    """

    def work(cell: TableCell, folder: Path) -> Measured:
        fed = load(cell.column.data, cell.seed, **shrunk(cell))
        assert fed.planted is not None and fed.truth is not None
        rows = EqualRows.of(fed)
        groups = PlantedGroups(rows, fed.truth)
        first = random_starts(cell, starts, fed.planted)
        least = np.inf
        enough = 0.6 * cell.data_options["noise"] or 0.001
        for lr in steps:
            for _, centres in run_starts(first, rows, lr, cell.options["rounds"], groups):
                least = min(least, error_of(centres, fed.planted))
                if least <= enough:
                    return Measured({"success": 1.0, "error": least})
        return Measured({"success": 0.0, "error": least})

    return work


def shrunk(cell: TableCell) -> dict[str, Any]:
    """Return the options of the data, with rows and dimensions divided by the option `shrink`.

    The clients' first choices depend on n/d, and the error of least squares in units of σ on
    d/(mn/k): both stay the same if m does.
    """
    by = cell.options["shrink"]
    known = cell.data_options
    return {**known, "samples": known["samples"] // by, "dim": known["dim"] // by}


def random_starts(cell: TableCell, starts: int, planted: Tensor) -> Tensor:
    """Draw starts [S, K, d] like the released code: every number of a centre is 0 or 1."""
    drawn = []
    for start in range(starts):
        generator = torch.Generator().manual_seed(1000 * cell.seed + start)
        drawn.append(torch.randint(2, planted.shape, generator=generator))
    return torch.stack(drawn).to(planted.dtype)


def error_of(centres: Tensor, planted: Tensor) -> float:
    """Return the distance of centres [K, d] from the planted parameters; ∞ if they diverged."""
    return float(planted_error({"weight": centres}, planted).get("planted_error", np.inf))


class Grid(NamedTuple):
    """The axes of a heat map and its claims."""

    lines: tuple[TableLine, ...]
    columns: tuple[DataColumn, ...]
    down: str  # what changes from line to line
    across: str
    claims: tuple[Rises, ...]


PAPER_SCALE = TableScale(seeds=40)
FEWER = "10 trials instead of 40."


def coarse(lines: tuple[str, ...]) -> TableScale:
    """Return a full scale with fewer lines and trials than the paper, which would take too long."""
    return TableScale(
        seeds=10,
        lines=lines,
        remarks=(FEWER, f"A coarser grid: of the lines, {', '.join(lines)} alone."),
    )


def medium(trials: int, shrink: int, *remarks: str) -> TableScale:
    """Return a scale of minutes that keeps n/d and the error of least squares."""
    return TableScale(
        seeds=trials,
        options={"shrink": shrink},
        remarks=(
            f"Every n and d is divided by {shrink} (shrink), and m is the paper's: n/d and "
            "the floor of least squares stay as they are. The θ are then "
            f"√{shrink} times closer together.",
            *remarks,
        ),
    )


def smoke(grid: Grid) -> TableScale:
    """Return a scale of seconds."""
    return TableScale(
        seeds=1,
        options={"shrink": 25, "rounds": 20},
        lines=tuple(line.label for line in grid.lines[:2]),
        columns=tuple(column.label for column in grid.columns[:2]),
    )


def figure_3(part: str, clusters: int, grid: Grid, scales: Mapping[str, TableScale]) -> Experiment:
    """Return one of the four heat maps.

    Args:
        part: Letter of the figure.
        clusters: Number of clusters k.
        grid: Lines, columns and claims.
        scales: By name, the scales; the smoke scale is added.
    """
    steps = (0.1, 0.01, 1.0) if clusters == 2 else (1.0, 0.5, 2.0)
    return Experiment(
        name=f"ifca.figure3{part}",
        title=f"How often IFCA succeeds from random starts, {grid.down} against {grid.across}",
        paper=PAPER,
        where=f"figure 3({part})",
        lines=grid.lines,
        columns=grid.columns,
        scales={**scales, "smoke": smoke(grid)},
        work=success(steps, starts=10),
        quantities=(Quantity("success", "share of trials that succeed", 2),),
        claims=grid.claims,
        figures={
            "": heat_map_figure(
                f"Share that succeeds, k = {clusters}", grid.down, grid.across, "success"
            )
        },
    )


def line_for(label: str, clusters: int, clients: int, strength: float) -> TableLine:
    """Return a line of a heat map: IFCA with gradient averaging."""
    return TableLine(
        label=label,
        method=ct.IFCA(clusters=clusters, average="gradients", init="random"),
        data_options={"clusters": clusters, "clients": clients, "scale": strength},
    )


def column_for(label: str, **data_options: Any) -> DataColumn:
    """Return a column of a heat map."""
    known = {"dim": 1000, "samples": 100, "noise": 0.1, "test_samples": 0}
    return DataColumn(
        label=label,
        data="linear:ifca",
        data_options={**known, **data_options},
        model="linear:nobias",
        options={"rounds": 300, "shrink": 1},
    )


def strength_against_noise(
    part: str, clusters: int, clients: int, scales: Mapping[str, TableScale]
) -> Experiment:
    """Return part (a) or (b): lines are lengths r of θ, columns are noise σ."""
    strengths = (0.1, 0.25, 0.5, 0.75, 1.0)
    noises = (0.0, 0.1, 0.2, 0.4)
    lines = [line_for(f"r={r}", clusters, clients, r) for r in strengths]
    columns = [column_for(f"σ={noise}", noise=noise) for noise in noises]
    rising = [Rises(tuple((line.label, c.label) for line in lines)) for c in columns[1:]]
    falling = [
        Rises(tuple((line.label, c.label) for c in columns[1:]), falls=True) for line in lines
    ]
    grid = Grid(tuple(lines), tuple(columns), "r", "σ", (*rising, *falling))
    return figure_3(part, clusters, grid, scales)


def clients_against_rows(
    part: str,
    clusters: int,
    strength: float,
    clients: tuple[int, ...],
    scales: Mapping[str, TableScale],
) -> Experiment:
    """Return part (c) or (d): lines are numbers of clients m, columns are rows n per client."""
    lines = [line_for(f"m={m}", clusters, m, strength) for m in clients]
    columns = [column_for(f"n={n}", samples=n) for n in (50, 100, 200)]
    by_clients = [Rises(tuple((line.label, c.label) for line in lines)) for c in columns]
    by_rows = [Rises(tuple((line.label, c.label) for c in columns)) for line in lines]
    grid = Grid(tuple(lines), tuple(columns), "m", "n", (*by_clients, *by_rows))
    return figure_3(part, clusters, grid, scales)


EXPERIMENTS = (
    strength_against_noise(
        "a", clusters=2, clients=100, scales={"full": PAPER_SCALE, "medium": medium(40, 5)}
    ),
    strength_against_noise(
        "b",
        clusters=4,
        clients=400,
        scales={
            "full": coarse(("r=0.1", "r=0.25", "r=0.5", "r=1.0")),
            "medium": replace(medium(10, 20, FEWER), lines=("r=0.1", "r=0.25", "r=0.5", "r=1.0")),
        },
    ),
    clients_against_rows(
        "c",
        clusters=2,
        strength=0.1,
        clients=(50, 70, 100, 150, 200, 300, 400),
        scales={"full": PAPER_SCALE, "medium": medium(10, 10)},
    ),
    clients_against_rows(
        "d",
        clusters=4,
        strength=0.5,
        clients=(100, 200, 300, 400, 800),
        scales={
            "full": coarse(("m=100", "m=200", "m=400", "m=800")),
            "medium": replace(medium(10, 10, FEWER), lines=("m=100", "m=200", "m=400")),
        },
    ),
)
