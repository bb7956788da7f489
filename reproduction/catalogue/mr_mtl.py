"""Liu et al. 2022: private learning between schools, figure 3(c) at ε = 6."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import coterie as ct
from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError
from coterie.data import Federation
from coterie.data.federation import Ragged
from reproduction.claims import Beats
from reproduction.figures_of_tables import ranking_figure
from reproduction.spec import (
    DataColumn,
    Experiment,
    Measured,
    Quantity,
    TableCell,
    TableLine,
    TableScale,
)
from reproduction.work import read_curves

FILE = "ilea.csv"
LOWEST, HIGHEST = 1.0, 70.0  # scores
TEST_SHARE = 0.2
LOSS_FACTOR = 0.5  # their loss is ½(ŷ − y)², ours (ŷ − y)²


def load_schools(cell: TableCell) -> Federation:
    """Load the schools as Liu et al. do: columns standardised within each school.

    Raises:
        CoterieError: The file does not exist.
    """
    place = Path(os.environ.get("COTERIE_DATA", "data")) / "sites" / FILE
    if not place.exists():
        raise CoterieError(
            f"{cell.experiment.name} needs {place}, which is not there",
            f"set COTERIE_DATA to a folder that holds sites/{FILE}",
        )
    with place.open() as lines:
        rows = list(csv.DictReader(lines))
    columns = [name for name in rows[0] if name not in ("school", "score")]
    schools = sorted({row["school"] for row in rows}, key=int)
    limit = int(cell.data_options.get("schools", len(schools)))
    draw = np.random.default_rng(cell.seed)
    train, test = [], []
    for school in schools[:limit]:
        own = [row for row in rows if row["school"] == school]
        x = np.array([[float(row[name]) for name in columns] for row in own])
        y = (np.array([float(row["score"]) for row in own]) - LOWEST) / (HIGHEST - LOWEST)
        order = draw.permutation(len(own))
        held_out = int(np.ceil(TEST_SHARE * len(own)))
        at_test, at_train = order[:held_out], order[held_out:]
        mean, deviation = x[at_train].mean(0), x[at_train].std(0)
        x = (x - mean) / np.where(deviation > 0, deviation, 1.0)
        train.append((x[at_train], y[at_train]))
        test.append((x[at_test], y[at_test]))
    return Federation(
        names=tuple(f"school {school}" for school in schools[:limit]),
        train=_ragged(train),
        test=_ragged(test),
        kind="regression",
        classes=None,
    )


def _ragged(parts: list[tuple[np.ndarray, np.ndarray]]) -> Ragged:
    x, y = (torch.tensor(np.concatenate(each), dtype=torch.float32) for each in zip(*parts))
    return Ragged(x, y, torch.tensor([len(part[1]) for part in parts]))


def linear_at_zero(inputs: int) -> nn.Linear:
    """A linear model whose weights start at 0, as theirs do."""
    model = nn.Linear(inputs, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def measure_school(cell: TableCell, folder: Path) -> Measured:
    """Train a line; the mean squared error over all test rows, and ε of the worst school."""
    fed = load_schools(cell)
    model = linear_at_zero(fed.train.x.shape[1])
    options = {"paper": True, **cell.options, "seed": cell.seed}
    if (folder / "config.json").exists():
        result = ct.resume(folder, fed, model, cell.method)
    else:
        result = ct.run(cell.method, fed, model, out=folder, **options)
    values = {"mse": float(result.final["mse"])}
    if "epsilon" in result.final:
        values["epsilon"] = float(result.final["epsilon"])
    return Measured(values, read_curves(result))


HOW: dict[str, Any] = {"batch": 32, "local_epochs": 1, "lr": 0.01 * LOSS_FACTOR}
# with half the gradient, clipping at 1 and the pull λ are theirs at twice the values
PRIVATE = {"dp": "rows", "epsilon": 6.0, "delta": 1e-3, "dp_clip": 1.0 / LOSS_FACTOR}
LAMBDA = 1.0 / LOSS_FACTOR
METHODS: dict[str, Algorithm] = {
    "mr-mtl": ct.MRMTL(lam=LAMBDA, **HOW),
    "fedavg": ct.FedAvg(**HOW),
    "local": ct.LocalOnly(**HOW),
}
PRINTED = {"mr-mtl": ".0239", "fedavg": ".0256", "local": ".0263"}

EXPERIMENTS = (
    Experiment(
        name="mr_mtl.school",
        title="139 schools, record-level differential privacy",
        paper="Liu et al. 2022",
        where="figure 3(c), ε = 6",
        lines=(
            *(TableLine(label=name, method=method) for name, method in METHODS.items()),
            *(
                TableLine(
                    label=f"{name}, no privacy",
                    method=method,
                    options={"dp": None, "epsilon": None, "delta": None, "dp_clip": "auto"},
                    in_paper=False,
                )
                for name, method in METHODS.items()
            ),
        ),
        columns=(
            DataColumn(
                label="School",
                data=f"table:{FILE}",
                options={"rounds": 200, "eval_every": 20, **PRIVATE},
            ),
        ),
        scales={
            "full": TableScale(seeds=5),
            "medium": TableScale(seeds=2),
            "smoke": TableScale(
                seeds=1,
                data_options={"schools": 6},
                options={"rounds": 2},
                lines=("mr-mtl", "fedavg"),
            ),
        },
        work=measure_school,
        quantities=(
            Quantity("mse", "test MSE of the score in [0, 1]", 4, higher_is_better=False),
            Quantity("epsilon", "ε of the worst school", 2, higher_is_better=False),
        ),
        printed={name: {"School": value} for name, value in PRINTED.items()},
        claims=(Beats("mr-mtl", "fedavg"), Beats("mr-mtl", "local"), Beats("fedavg", "local")),
        figures={"": ranking_figure("139 schools, ε = 6")},
    ),
)
