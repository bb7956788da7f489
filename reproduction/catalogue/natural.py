"""Real sites, in which nobody planted groups: tables of hospitals, schools and states."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError
from coterie.data import Federation
from coterie.data.spec import load
from coterie.methods.apfl import APFL
from coterie.methods.cfl import CFL
from coterie.methods.cfl_mgd import CFLMGD
from coterie.methods.cgpfl import CGPFL, CGPFLHeur
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg, FineTuned
from coterie.methods.fedbcd import FedBCD
from coterie.methods.fedem import FedEM
from coterie.methods.fedper import FedPer
from coterie.methods.fedprox import FedProx
from coterie.methods.fedsoft import FedSoft
from coterie.methods.flhc import FLHC
from coterie.methods.ifca import IFCA
from coterie.methods.l2sgd import L2SGD
from coterie.methods.local_only import LocalOnly
from coterie.methods.one_shot import OneShot
from coterie.methods.perfedavg import PerFedAvg
from coterie.methods.pfedme import PFedMe
from coterie.methods.threshold import PDLTC, PFLTC
from coterie.result import Result
from reproduction.claims import Beats
from reproduction.figures_of_tables import ranking
from reproduction.references import ALPHAS, Reference
from reproduction.site_groups import describe_groups, keep_groups, levels_by_group
from reproduction.spec import (
    OURS,
    Experiment,
    Measured,
    Quantity,
    TableCell,
    TableColumn,
    TableLine,
    TableScale,
)
from reproduction.work import chosen_settings, curves, train

DEFAULTS = {"paper": False}  # ours, which suit tables
COUNTS = (1, 2, 3, 4)  # numbers of groups for methods that cannot choose one themselves
DECAYS = (0.005, 0.02, 0.1, 0.5)
PULLS = (0.1, 0.5, 2.0, 10.0)
STRONG_PULLS = (1.0, 4.0, 12.0, 40.0)  # of methods that solve a problem of their own in each step


def tuned(method: Algorithm, **tune: tuple[Any, ...]) -> TableLine:
    """A method with our defaults, but for the setting that each run finds on held-out rows."""
    return TableLine(label=method.name, method=method, options=DEFAULTS, tune=tune)


METHODS = (
    tuned(FedAvg(), l2=DECAYS),
    tuned(FineTuned(), finetune=(3, 10, 30, 100)),
    tuned(LocalOnly(), l2=DECAYS),
    tuned(FedPer(), l2=DECAYS),
    tuned(Ditto(), lam=PULLS),
    tuned(APFL(), alpha=(0.25, 0.5, 0.75, 1.0)),
    tuned(PerFedAvg(), inner=(0.01, 0.05, 0.2, 0.5)),
    tuned(PFedMe(), lam=STRONG_PULLS),
    tuned(L2SGD(), lam=PULLS),
    tuned(FedProx(), mu=(0.01, 0.1, 1.0, 10.0)),
    tuned(FedBCD(), rho=PULLS),
    tuned(IFCA(clusters="auto"), l2=DECAYS),
    tuned(CFLMGD(clusters="auto"), beta=(0.0, 0.3, 0.6, 0.9)),
    tuned(OneShot(clusters="auto"), l2=DECAYS),
    tuned(CGPFLHeur(), lam=STRONG_PULLS),
    tuned(CGPFL(clusters=2), clusters=COUNTS),
    tuned(FedSoft(clusters=2), clusters=(2, 3), pull=(0.1, 1.0)),
    tuned(FedEM(clusters=2), clusters=(2, 3), l2=(0.02, 0.1)),
    tuned(PFLTC(clusters=2), clusters=COUNTS),
    tuned(PDLTC(clusters=2), clusters=COUNTS),
    tuned(FLHC(), distance=(0.4, 0.8, 1.2, 1.6)),
    tuned(CFL(), eps1=(0.1, 0.2, 0.4, 0.8)),
)
REFERENCES = ("pooled", "per site, best α", "site intercepts", "boosted")
NUMBER = Quantity("groups", "number of groups", 1)
CLAIMS = (
    Beats("ifca", "fedavg"),
    Beats("ifca", "local"),
    Beats("ifca", "fedavg-ft"),
    Beats("ifca", "fedper"),
    Beats("fedsoft", "fedavg"),
    Beats("fedsoft", "local"),
    Beats("fedsoft", "fedavg-ft"),
    Beats("fedsoft", "fedper"),
)


def on_table(cell: TableCell, folder: Path) -> Measured:
    """A line of the table, on the file that the column names."""
    return measured_on(load_table(cell), cell, folder)


def measured_on(fed: Federation, cell: TableCell, folder: Path) -> Measured:
    """A reference fitted to all rows, or a method; and sites that are kept out of training."""
    if cell.line.method is None:
        return Measured({"error": reference_error(fed, cell.line.label)})
    metric = "mse" if fed.kind == "regression" else "loss"
    result = train(cell, fed, folder)
    values = {"error": float(result.final[metric]), **unseen_and_groups(result, metric)}
    extra = {"tuned": chosen_settings(cell, result), **keep_groups(result, fed)}
    return Measured(values, curves(result), extra)


def unseen_and_groups(result: Result, metric: str) -> dict[str, float]:
    """The metric of sites that never trained, and the number of groups, where there are any."""
    values = {}
    unseen = result.final.get(f"unseen_{metric}")
    if unseen is not None:
        values["unseen"] = float(unseen)
    if result.trained.hard_groups is not None:
        values["groups"] = float(len(set(result.trained.hard_groups.tolist())))
    return values


def load_table(cell: TableCell) -> Federation:
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


def on_real_table(
    name: str,
    title: str,
    file: str,
    unseen: int,
    digits: int = 4,
    error: str = "MSE",
    findings: tuple[str, ...] = (),
    **options: Any,
) -> Experiment:
    """Every method on one table, beside scikit-learn.

    unseen: how many sites are kept out of training.  error: which it is.  digits: of it, behind the
    point.
    """
    return Experiment(
        name=f"natural.{name}",
        title=title,
        paper=OURS,
        where=name,
        lines=(*METHODS, *(TableLine(label=label) for label in REFERENCES)),
        columns=(TableColumn(label=name, data=file, data_options={"unseen": unseen, **options}),),
        scales={
            "full": TableScale(seeds=5),
            "medium": TableScale(seeds=3),
            "smoke": TableScale(
                seeds=1,
                options={"rounds": 2},
                settings={"clusters": 2},
                lines=("fedavg", "ifca", "pooled"),
            ),
        },
        work=on_table,
        quantities=(
            Quantity("error", f"test error ({error})", digits, higher_is_better=False),
            Quantity(
                "unseen", f"{error} at sites that never trained", digits, higher_is_better=False
            ),
            NUMBER,
        ),
        claims=CLAIMS,
        findings=findings,
        open_points=(
            "Every method has four values of one setting, or two of two; each run takes that of "
            "least loss on a fifth of its training rows; all else is our default. Methods that can "
            "choose the number of groups by themselves do, on held-out training rows.",
            "Sites that never trained are drawn by the seed and assigned by their training rows.",
            "The references have all rows in one place, and the ridge per site chooses its "
            "strength on the test rows.",
        ),
        sections={"What the groups are": describe_groups("ifca")},
        figures={
            "": ranking(title, REFERENCES, "scikit-learn"),
            "-groups": levels_by_group("ifca"),
        },
    )


EXPERIMENTS = (
    on_real_table(
        "heart",
        "Four hospitals",
        "folder:heart",
        0,
        error="log loss",
        findings=(
            "What sets the hospitals apart is how many of their patients are ill, 41 % at "
            "Cleveland and Hungary and 93 % in Switzerland: an intercept for each hospital under "
            "shared slopes takes away all that can be. Groups of hospitals gain half of it.",
            "FedSoft is ahead of all methods and level with the best reference. With four sites "
            "and three seeds hardly any difference is certain.",
            "Settings that were chosen by the accuracy on held-out rows, not by their loss, were "
            "worse (commit 148d17b): on so few rows it is too coarse.",
        ),
        label="disease",
        fill="median",
    ),
    on_real_table(
        "exam",
        "65 London schools",
        "table:exam.csv",
        6,
        findings=(
            "Methods that give each school a model near a shared one (fedsoft, fedavg-ft, ditto, "
            "l2sgd, fedbcd) are ahead of the ridge with an intercept for each school, which sees "
            "all rows at once. Groups of ifca and cfl-mgd gain 9 % on one model for all, as much "
            "as models of each school's own rows; those of one-shot gain 2 %.",
            "The groups differ in their level and overlap in it; with other rows ifca's do not "
            "come back. Schools lie on a scale, and groups cut it into pieces.",
        ),
        label="normexam",
        client_column="school",
    ),
    on_real_table(
        "hsb82",
        "160 high schools",
        "table:hsb82.csv",
        16,
        digits=3,
        findings=(
            "With seed 0 two groups, with an average of 14.8 and of 11.2 points, and three with "
            "the others; public schools are twice as common in the lower one. The gap between "
            "public and Catholic schools is known, and little of it is left for a model that sees "
            "a pupil's own columns: groups gain nothing on one model for all, and a model of each "
            "school that starts from a shared one gains 3 %.",
        ),
        label="mAch",
        client_column="school",
    ),
    on_real_table(
        "star",
        "79 Tennessee schools",
        "table:star_k.csv",
        8,
        digits=1,
        findings=(
            "Here schools differ most, and groups gain most on one model for all: 12 %. A model of "
            "each school that is pulled towards shared ones gains more, fedsoft 17 %: more than "
            "a ridge of each school, than one with an intercept for each, and than boosting.",
            "The group with the best readers has no inner-city school, and most of its children "
            "pay for lunch. With other rows groups come back in part (ifca 0.27, cgpfl 0.70).",
        ),
        label="readk",
        client_column="schoolidk",
        fill="median",
    ),
    on_real_table(
        "azpro",
        "17 Arizona hospitals",
        "table:azpro.csv",
        2,
        digits=2,
        findings=(
            "No difference between hospitals shows: the best and the worst of 22 methods are 2 % "
            "apart, and ifca has one group with two of three seeds. Nothing is lost by looking for "
            "groups.",
        ),
        label="los",
        client_column="hospital",
    ),
    on_real_table(
        "lending",
        "Loans in 50 states",
        "table:lending.csv",
        5,
        error="log loss",
        findings=(
            "No difference between states shows: ifca, cfl-mgd and one-shot find one group, and "
            "one model for all is as good as anything. Models far from the shared one lose by it: "
            "local 7 %, pfedme 10 %, fedbcd 19 %, cgpfl-heur 27 % and cgpfl 28 %; those near to "
            "it, of ditto and fedavg-ft, half a percent.",
        ),
        label="Class",
        client_column="addr_state",
    ),
)
