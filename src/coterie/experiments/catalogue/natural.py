"""Real sites, in which nobody planted groups: hospitals, schools, states, people."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from coterie.algorithms.cfl_mgd import CFLMGD
from coterie.algorithms.cgpfl import CGPFLHeur
from coterie.algorithms.ifca import IFCA
from coterie.algorithms.one_shot import OneShot
from coterie.baselines.ditto import Ditto
from coterie.baselines.fedavg import FedAvg, FineTuned
from coterie.baselines.fedper import FedPer
from coterie.baselines.local_only import LocalOnly
from coterie.data import Federation
from coterie.data.spec import load
from coterie.errors import CoterieError
from coterie.experiments.claims import Beats
from coterie.experiments.figures import curves_of
from coterie.experiments.references import ALPHAS, Reference
from coterie.experiments.spec import (
    ACCURACY,
    WORST,
    Cell,
    Column,
    Experiment,
    Line,
    Measured,
    Quantity,
    Scale,
)
from coterie.experiments.work import curves, scores, train, trained
from coterie.result import Result

PAPER = "Ours, beyond the papers"
OURS = {"paper": False}  # our defaults, which suit tables
AUTO: dict[str, Any] = {"clusters": "auto"}
METHODS = (
    Line(label="fedavg", method=FedAvg(), options=OURS),
    Line(label="fedavg-ft", method=FineTuned(), options=OURS),
    Line(label="local", method=LocalOnly(), options=OURS),
    Line(label="ditto", method=Ditto(), options=OURS),
    Line(label="fedper", method=FedPer(), options=OURS),
    Line(label="ifca", method=IFCA(**AUTO), options=OURS),
    Line(label="cfl-mgd", method=CFLMGD(**AUTO), options=OURS),
    Line(label="one-shot", method=OneShot(**AUTO), options=OURS),
    Line(label="cgpfl-heur", method=CGPFLHeur(), options=OURS),
)
REFERENCES = ("pooled", "per site, best α", "site intercepts", "boosted")
UNSEEN = Quantity("unseen", "error at sites that never trained", 4, higher_is_better=False)
NUMBER = Quantity("groups", "number of groups", 1)
CLAIMS = (
    Beats("ifca", "fedavg"),
    Beats("ifca", "local"),
    Beats("ifca", "fedavg-ft"),
)


# ------------------------------------------------------------------------------ tables
def on_table(cell: Cell, folder: Path) -> Measured:
    """A reference fitted to all rows, or a method; and sites that are kept out of training."""
    fed = load_table(cell)
    if cell.line.method is None:
        return Measured({"error": reference_error(fed, cell.line.label)})
    metric = "mse" if fed.kind == "regression" else "loss"
    result = train(cell, fed, folder)
    values = {"error": float(result.final[metric])}
    unseen = result.final.get(f"unseen_{metric}")
    if unseen is not None:
        values["unseen"] = float(unseen)
    if result.trained.hard_groups is not None:
        values["groups"] = float(len(set(result.trained.hard_groups.tolist())))
    return Measured(values, curves(result))


def load_table(cell: Cell) -> Federation:
    """The table of a column, split into training and test rows by the seed."""
    kind, _, file = cell.column.data.partition(":")
    place = Path(os.environ.get("COTERIE_DATA", "data")) / "sites" / file
    if not place.exists():
        raise CoterieError(
            f"{cell.experiment.name} needs {place}, which is not there",
            f"set COTERIE_DATA to a folder that holds sites/{file}",
        )
    return load(f"{kind}:{place}", cell.seed, **cell.data_options)


def reference_error(fed: Federation, label: str) -> float:
    """The test error of a reference; of the ridges per site the best strength, on test rows."""
    reference = Reference(fed)
    if label == "pooled":
        return reference.pooled()
    if label == "site intercepts":
        return reference.site_intercepts()
    if label == "boosted":
        return reference.boosted()
    return min(map(reference.per_site, ALPHAS))


def on_real_table(name: str, title: str, file: str, unseen: int, **options: Any) -> Experiment:
    """Every method with our defaults on one table, beside scikit-learn."""
    return Experiment(
        name=f"natural.{name}",
        title=title,
        paper=PAPER,
        where=name,
        lines=(*METHODS, *(Line(label=label) for label in REFERENCES)),
        columns=(Column(label=name, data=file, data_options={"unseen": unseen, **options}),),
        scales={
            "full": Scale(seeds=5),
            "medium": Scale(seeds=3),
            "smoke": Scale(seeds=1, options={"rounds": 2}, lines=("fedavg", "local", "pooled")),
        },
        work=on_table,
        quantities=(
            Quantity("error", "test error (MSE, or log loss)", 4, higher_is_better=False),
            UNSEEN,
            NUMBER,
        ),
        claims=CLAIMS,
        open_points=(
            "No setting was tuned; the number of groups is chosen on held-out training rows.",
            "Sites that never trained are drawn by the seed and assigned by their training rows.",
            "The references have all rows in one place, and the ridge per site chooses its "
            "strength on the test rows.",
        ),
        figures={"": curves_of("loss", "Test loss")},
    )


# ------------------------------------------------------------------------------ people
def on_all_people(result: Result, fed: Federation) -> Measured:
    """The scores; those of people who never trained; and the number of groups."""
    measured = scores(result, fed)
    values = dict(measured.values)
    unseen = result.final.get("unseen_accuracy")
    if unseen is not None:
        values["unseen"] = float(unseen)
    if result.trained.hard_groups is not None:
        values["groups"] = float(len(set(result.trained.hard_groups.tolist())))
    return Measured(values, measured.curves)


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
        paper=PAPER,
        where=name,
        lines=METHODS,
        columns=(
            Column(
                label=name,
                data=f"by_key:{base}",
                data_options={"unseen": unseen, **data_options},
                options={"rounds": 50},
            ),
        ),
        scales={
            "full": Scale(seeds=5),
            "medium": Scale(
                seeds=3,
                data_options={"clients": 20, "samples": 60, "unseen": 4},
                options={"rounds": 15},
            ),
            "smoke": Scale(
                seeds=1,
                data_options={"clients": 6, "samples": 30, "unseen": 1},
                options={"rounds": 2},
                lines=("fedavg", "local"),
            ),
        },
        work=trained(on_all_people),
        quantities=(
            ACCURACY,
            WORST,
            Quantity("unseen", "accuracy on people who never trained, %", 2, 100.0),
            NUMBER,
        ),
        claims=CLAIMS,
        findings=findings,
        open_points=("Step size 0.1 and ten steps a round for all; nothing was tuned.",),
        figures={"": curves_of("accuracy", "Test accuracy")},
    )


EXPERIMENTS = (
    on_real_table("heart", "Four hospitals", "folder:heart", 0, label="disease", fill="median"),
    on_real_table(
        "exam", "65 London schools", "table:exam.csv", 6, label="normexam", client_column="school"
    ),
    on_real_table(
        "hsb82", "160 high schools", "table:hsb82.csv", 16, label="mAch", client_column="school"
    ),
    on_real_table(
        "star",
        "79 Tennessee schools",
        "table:star_k.csv",
        8,
        label="readk",
        client_column="schoolidk",
        fill="median",
    ),
    on_real_table(
        "azpro", "17 Arizona hospitals", "table:azpro.csv", 2, label="los", client_column="hospital"
    ),
    on_real_table(
        "lending",
        "Loans in 50 states",
        "table:lending.csv",
        5,
        label="Class",
        client_column="addr_state",
    ),
    on_people(
        "har",
        "30 people's phones",
        "har",
        3,
        findings=(
            "At the medium scale no model has converged after 15 rounds: momentum (cfl-mgd) and "
            "the further steps of fine-tuning are ahead for that. One group is chosen with two of "
            "three seeds, so that the table says little of groups.",
            "Fine-tuning one model gains 11 points over it, and most for the worst tenth: people "
            "differ, but not in kinds that 60 rows of each would tell apart.",
        ),
    ),
    on_people(
        "writers",
        "Writers of letters",
        "unipen",
        30,
        findings=(
            "Shared models have not converged after 15 rounds, the medium scale, and momentum "
            "(cfl-mgd) is ahead for that. One group is chosen with every seed; ifca is ahead of "
            "fedavg by its further steps in round 0, not by groups.",
            "Writers who never trained gain most from a body that all share under a layer of their "
            "own (fedper).",
        ),
        least=50,
    ),
)
