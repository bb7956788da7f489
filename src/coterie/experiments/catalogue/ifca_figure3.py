"""IFCA's figure 3: how often it succeeds from random starts, on linear regression."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.algorithms.ifca import IFCA
from coterie.data import Federation
from coterie.errors import Diverged
from coterie.experiments.catalogue.ifca import PAPER
from coterie.experiments.claims import Rises
from coterie.experiments.figures import heat_map
from coterie.experiments.spec import (
    Cell,
    Column,
    Experiment,
    Line,
    Measured,
    Quantity,
    Scale,
    Work,
    with_settings,
)
from coterie.experiments.work import federation
from coterie.result import run
from coterie.runs.start import prepare


def success(steps: tuple[float, ...], starts: int) -> Work:
    """Work that tries several starts with several step sizes, until one finds the parameters.

    A start is drawn as the released code draws it: every number of a centre is 0 or 1.
    """

    def work(cell: Cell, folder: Path) -> Measured:
        fed = federation(cell)
        least = np.inf
        enough = 0.6 * cell.data_options["noise"] or 0.001
        for lr, start in itertools.product(steps, range(starts)):
            error = error_from(cell, fed, lr, start)
            least = min(least, error)
            if least <= enough:
                break
        return Measured({"success": float(least <= enough), "error": least})

    return work


def error_from(cell: Cell, fed: Federation, lr: float, start: int) -> float:
    """How far the centres end from the planted parameters; infinite where it diverged."""
    method = with_settings(cell.method, {"lr": lr})
    options = {"paper": True, "seed": cell.seed, **cell.options}
    ready = prepare(method, fed, cell.model, **options)
    state, _ = method.start(ready.task, len(fed), cell.seed)
    draw = torch.Generator().manual_seed(1000 * cell.seed + start)
    centres = {
        name: torch.randint(2, value.shape, generator=draw).to(value.dtype)
        for name, value in state.centres.items()
    }
    try:
        result = run(method, fed, cell.model, start=state._replace(centres=centres), **options)
    except Diverged:
        return np.inf
    return float(result.final.get("planted_error", np.inf))


class Grid(NamedTuple):
    """The axes of a heat map, and what should hold in it."""

    lines: tuple[Line, ...]
    columns: tuple[Column, ...]
    down: str  # what changes from line to line
    across: str
    claims: tuple[Rises, ...]


def figure_3(part: str, clusters: int, grid: Grid) -> Experiment:
    """One of the four heat maps."""
    steps = (0.1, 0.01, 1.0) if clusters == 2 else (1.0, 0.5, 2.0)
    return Experiment(
        name=f"ifca.figure3{part}",
        title=f"How often IFCA succeeds from random starts, {grid.down} against {grid.across}",
        paper=PAPER,
        where=f"figure 3({part})",
        lines=grid.lines,
        columns=grid.columns,
        scales={
            "full": Scale(seeds=40),
            "medium": Scale(
                seeds=5, data_options={"dim": 50, "samples": 10}, options={"rounds": 100}
            ),
            "smoke": Scale(
                seeds=1,
                data_options={"dim": 10, "samples": 10, "clients": 20},
                options={"rounds": 10},
                lines=tuple(line.label for line in grid.lines[:2]),
                columns=tuple(column.label for column in grid.columns[:2]),
            ),
        },
        work=success(steps, starts=10),
        quantities=(Quantity("success", "share of trials that succeed", 2),),
        claims=grid.claims,
        open_points=(
            "θ is r·Bernoulli(½) and not scaled to length R, as in the released code, from which "
            "the figure was drawn.",
            "At σ = 0 a trial succeeds within 0.001, as in the released code.",
            f"Step sizes are tried in the order {', '.join(map(str, steps))}, starts one after "
            "another, until one succeeds: the share is the same.",
        ),
        figures={"": heat_map("Share of trials that succeed", grid.down, grid.across, "success")},
    )


def line_for(label: str, clusters: int, clients: int, strength: float) -> Line:
    """A line of a heat map: IFCA that averages gradients, on data of one kind."""
    return Line(
        label=label,
        method=IFCA(clusters=clusters, average="gradients", init="random"),
        data_options={"clusters": clusters, "clients": clients, "scale": strength},
    )


def column_for(label: str, **data_options: Any) -> Column:
    """A column of a heat map."""
    known = {"dim": 1000, "samples": 100, "noise": 0.1}
    return Column(
        label=label,
        data="linear:ifca",
        data_options={**known, **data_options},
        model="linear:nobias",
        options={"rounds": 300, "eval_every": 300},
    )


def strength_against_noise(part: str, clusters: int, clients: int) -> Experiment:
    """(a) and (b): lines are lengths of θ, columns are noise."""
    strengths = (0.1, 0.25, 0.5, 0.75, 1.0)
    noises = (0.0, 0.1, 0.2, 0.4)
    lines = [line_for(f"r={r}", clusters, clients, r) for r in strengths]
    columns = [column_for(f"σ={noise}", noise=noise) for noise in noises]
    rising = [Rises(tuple((line.label, c.label) for line in lines)) for c in columns[1:]]
    falling = [
        Rises(tuple((line.label, c.label) for c in columns[1:]), falls=True) for line in lines
    ]
    grid = Grid(tuple(lines), tuple(columns), "r", "σ", (*rising, *falling))
    return figure_3(part, clusters, grid)


def clients_against_rows(
    part: str, clusters: int, strength: float, clients: tuple[int, ...]
) -> Experiment:
    """(c) and (d): lines are numbers of clients, columns are rows of each."""
    lines = [line_for(f"m={m}", clusters, m, strength) for m in clients]
    columns = [column_for(f"n={n}", samples=n) for n in (50, 100, 200)]
    by_clients = [Rises(tuple((line.label, c.label) for line in lines)) for c in columns]
    by_rows = [Rises(tuple((line.label, c.label) for c in columns)) for line in lines]
    grid = Grid(tuple(lines), tuple(columns), "m", "n", (*by_clients, *by_rows))
    return figure_3(part, clusters, grid)


EXPERIMENTS = (
    strength_against_noise("a", 2, 100),
    strength_against_noise("b", 4, 400),
    clients_against_rows("c", 2, 0.1, (50, 70, 100, 150, 200, 300, 400)),
    clients_against_rows("d", 4, 0.5, (100, 200, 300, 400, 800)),
)
