"""A small experiment without any training, and one that trains on embedded digits."""

from __future__ import annotations

from pathlib import Path

import coterie as ct
from reproduction.claims import Beats, Near, Rises
from reproduction.figures_of_tables import column_figure
from reproduction.spec import (
    ACCURACY,
    WORST,
    DataColumn,
    Experiment,
    Measured,
    TableCell,
    TableLine,
    TableScale,
)
from reproduction.work import measure_scores, train_and_measure

CALLS: list[str] = []


def given_values(cell: TableCell, folder: Path) -> Measured:
    """0.5, 0.1 more in the second line, 0.01 more for each seed; nothing is trained."""
    CALLS.append(cell.title)
    value = 0.5 + 0.1 * (cell.line.label == "second") + 0.01 * cell.seed
    return Measured({"accuracy": value, "worst": value / 2}, {"accuracy": [(0, 0.1), (1, value)]})


MADE = Experiment(
    name="made.table",
    title="A made table",
    paper="Nobody 2026",
    where="table 1",
    lines=(
        TableLine(label="first", method=ct.FedAvg(lr=0.1)),
        TableLine(label="second", method=ct.LocalOnly(lr=0.1), in_paper=False),
    ),
    columns=(
        DataColumn(label="a", data="rotated:digits", data_options={"clients": 8}),
        DataColumn(label="b", data="rotated:digits", data_options={"clients": 9}),
    ),
    scales={
        "full": TableScale(seeds=3),
        "smoke": TableScale(
            seeds=1, data_options={"clients": 4}, settings={"lr": 0.2}, columns=("a",)
        ),
    },
    work=given_values,
    quantities=(ACCURACY, WORST),
    printed={"first": {"a": "51.00 ± .10"}},
    claims=(
        Beats("second", "first", by=4),
        Beats("first", "second"),
        Near("first", "a", 51, within=0.5),
        Rises((("first", "a"), ("second", "a"))),
    ),
    figures={"": column_figure("Accuracy")},
)

TRAINED = Experiment(
    name="made.digits",
    title="Two rounds on digits",
    paper="Nobody 2026",
    where="table 2",
    lines=(
        TableLine(label="global", method=ct.FedAvg(lr=0.1, local_steps=2)),
        TableLine(label="wild", method=ct.FedAvg(lr=1e30, local_steps=2)),
    ),
    columns=(
        DataColumn(
            label="digits",
            data="rotated:digits",
            data_options={"clients": 4, "samples": 20},
            model="softmax",
            options={"rounds": 2},
        ),
    ),
    scales={"full": TableScale(seeds=1)},
    work=train_and_measure(measure_scores),
    quantities=(ACCURACY,),
)
