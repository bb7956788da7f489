"""Real people, in whom nobody planted groups: phones that they wear, letters that they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.methods.cfl_mgd import CFLMGD
from coterie.methods.cgpfl import CGPFLHeur
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg, FineTuned
from coterie.methods.fedper import FedPer
from coterie.methods.fedsoft import FedSoft
from coterie.methods.ifca import IFCA
from coterie.methods.local_only import LocalOnly
from coterie.methods.one_shot import OneShot
from reproduction.catalogue.natural import CLAIMS, NUMBER, tuned, unseen_and_groups
from reproduction.figures_of_tables import ranking
from reproduction.site_groups import describe_groups, keep_groups
from reproduction.spec import (
    ACCURACY,
    OURS,
    WORST,
    Experiment,
    Measured,
    Quantity,
    TableCell,
    TableColumn,
    TableScale,
)
from reproduction.work import chosen_settings, federation, scores, train

STEPS = (0.03, 0.1, 0.3, 1.0)
METHODS = (
    tuned(FedAvg(), lr=STEPS),
    tuned(FineTuned(), lr=STEPS),
    tuned(LocalOnly(), lr=STEPS),
    tuned(Ditto(), lr=STEPS),
    tuned(FedPer(), lr=STEPS),
    tuned(IFCA(clusters="auto"), lr=STEPS),
    tuned(CFLMGD(clusters="auto"), lr=STEPS),
    tuned(OneShot(clusters="auto"), lr=STEPS),
    tuned(FedSoft(clusters=2), lr=STEPS),
    tuned(CGPFLHeur(), lr=(0.02, 0.08), inner_lr=(0.02, 0.1)),
)


def on_person(cell: TableCell, folder: Path) -> Measured:
    """The scores; those of people who never trained; and the groups."""
    fed = federation(cell)
    result = train(cell, fed, folder)
    measured = scores(result, fed)
    values = measured.values | unseen_and_groups(result, "accuracy")
    extra = {"tuned": chosen_settings(cell, result), **keep_groups(result, fed)}
    return Measured(values, measured.curves, extra)


def on_people(
    name: str,
    title: str,
    base: str,
    unseen: int,
    findings: tuple[str, ...] = (),
    **data_options: Any,
) -> Experiment:
    """Every method on one client per person."""
    return Experiment(
        name=f"natural.{name}",
        title=title,
        paper=OURS,
        where=name,
        lines=METHODS,
        columns=(
            TableColumn(
                label=name,
                data=f"by_key:{base}",
                data_options={"unseen": unseen, **data_options},
                options={"rounds": 50},
            ),
        ),
        scales={
            "full": TableScale(seeds=5),
            "medium": TableScale(
                seeds=3,
                data_options={"clients": 20, "samples": 60, "unseen": 4},
                options={"rounds": 15},
            ),
            "smoke": TableScale(
                seeds=1,
                data_options={"clients": 6, "samples": 30, "unseen": 1},
                options={"rounds": 2},
                lines=("fedavg", "local"),
            ),
        },
        work=on_person,
        quantities=(
            ACCURACY,
            WORST,
            Quantity("unseen", "accuracy on people who never trained, %", 2, 100.0),
            NUMBER,
        ),
        claims=CLAIMS,
        findings=findings,
        open_points=(
            "Every method has four values of its step size, or of its two, and each run takes the "
            "most accurate on a fifth of its training rows; ten steps a round for all.",
        ),
        tune_by="accuracy",
        sections={"What the groups are": describe_groups("ifca")},
        figures={"": ranking(title)},
    )


EXPERIMENTS = (
    on_people(
        "har",
        "People's phones",
        "har",
        3,
        findings=(
            "Adapting a shared model to each person (fedavg-ft, ditto) gains seven points over one "
            "model for all, and 28 for the worst tenth. Two or three groups of ifca gain less than "
            "three points, and 16 for the worst tenth, and come back in part with other rows.",
            "People who never trained are served best by FedSoft and fedper, with little deviation "
            "between seeds.",
        ),
    ),
    on_people(
        "writers",
        "Writers of letters",
        "unipen",
        30,
        findings=(
            "ifca, cfl-mgd and one-shot find one group with every seed. Fine-tuning one model "
            "gains four points over it, and 24 with writers who never trained, where FedSoft is "
            "level with it.",
            "Where one model is shared, the longest steps that were tried are best: after 15 "
            "rounds, the medium scale, it still learns.",
        ),
        least=50,
    ),
)
