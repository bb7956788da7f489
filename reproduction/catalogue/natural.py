"""Every method on natural sites and people, and on sites with planted groups."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import coterie as ct
from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError
from coterie.data import Federation
from coterie.data.spec import load
from coterie.metrics import agreement
from coterie.result import Result
from reproduction.claims import Beats
from reproduction.figures_of_tables import ranking_figure
from reproduction.references import ALPHAS, Reference
from reproduction.site_groups import describe_groups, group_record, level_figure
from reproduction.spec import (
    ACCURACY,
    OURS,
    WORST,
    DataColumn,
    Experiment,
    Measured,
    Quantity,
    TableCell,
    TableLine,
    TableScale,
)
from reproduction.work import load_federation, measure_scores, read_curves, train, tuned_settings

DEFAULTS = {"paper": False}  # ours, which suit tables
COUNTS = (1, 2, 3, 4)  # numbers of groups for methods that cannot choose one themselves
DECAYS = (0.005, 0.02, 0.1, 0.5)
PULLS = (0.1, 0.5, 2.0, 10.0)
STRONG_PULLS = (1.0, 4.0, 12.0, 40.0)  # of methods that solve a problem of their own in each step


def tuned(method: Algorithm, **tune: tuple[Any, ...]) -> TableLine:
    """Return a line with our defaults, tuned over some hyper-parameters on held-out rows."""
    return TableLine(label=method.name, method=method, options=DEFAULTS, tune=tune)


METHODS = (
    tuned(ct.FedAvg(), l2=DECAYS),
    tuned(ct.FineTuned(), finetune=(3, 10, 30, 100)),
    tuned(ct.LocalOnly(), l2=DECAYS),
    tuned(ct.FedPer(), l2=DECAYS),
    tuned(ct.Ditto(), lam=PULLS),
    tuned(ct.APFL(), alpha=(0.25, 0.5, 0.75, 1.0)),
    tuned(ct.PerFedAvg(), inner=(0.01, 0.05, 0.2, 0.5)),
    tuned(ct.PFedMe(), lam=STRONG_PULLS),
    tuned(ct.L2SGD(), lam=PULLS),
    tuned(ct.FedProx(), mu=(0.01, 0.1, 1.0, 10.0)),
    tuned(ct.FedBCD(), rho=PULLS),
    tuned(ct.IFCA(clusters="auto"), l2=DECAYS),
    tuned(ct.CFLMGD(clusters="auto"), beta=(0.0, 0.3, 0.6, 0.9)),
    tuned(ct.OneShot(clusters="auto"), l2=DECAYS),
    tuned(ct.CGPFLHeur(), lam=STRONG_PULLS),
    tuned(ct.CGPFL(clusters=2), clusters=COUNTS),
    tuned(ct.FedSoft(clusters=2), clusters=(2, 3), pull=(0.1, 1.0)),
    tuned(ct.FedEM(clusters=2), clusters=(2, 3), l2=(0.02, 0.1)),
    tuned(ct.PFLTC(clusters=2), clusters=COUNTS),
    tuned(ct.PDLTC(clusters=2), clusters=COUNTS),
    tuned(ct.FLHC(), distance=(0.4, 0.8, 1.2, 1.6)),
    tuned(ct.CFL(), eps1=(0.1, 0.2, 0.4, 0.8)),
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


def measure_table(cell: TableCell, folder: Path) -> Measured:
    """Measure a cell on the file that its column names."""
    return train_and_measure_errors(load_table(cell), cell, folder)


def train_and_measure_errors(fed: Federation, cell: TableCell, folder: Path) -> Measured:
    """Fit a reference or train a method; measure errors, also at unseen sites, and groups."""
    if cell.line.method is None:
        return Measured({"error": reference_error(fed, cell.line.label)})
    metric = "mse" if fed.kind == "regression" else "loss"
    result = train(cell, fed, folder)
    values = {"error": float(result.final[metric]), **measure_unseen_and_groups(result, metric)}
    extra = {"tuned": tuned_settings(cell, result), **group_record(result, fed)}
    return Measured(values, read_curves(result), extra)


def measure_unseen_and_groups(result: Result, metric: str) -> dict[str, float]:
    """Return the metric at unseen sites and the number of groups, if there are any."""
    values = {}
    unseen = result.final.get(f"unseen_{metric}")
    if unseen is not None:
        values["unseen"] = float(unseen)
    if result.trained.hard_groups is not None:
        values["groups"] = float(len(set(result.trained.hard_groups.tolist())))
    return values


def load_table(cell: TableCell) -> Federation:
    """Load the table of a column, split into training and test rows by the seed.

    Raises:
        CoterieError: The file does not exist.
    """
    kind, _, file = cell.column.data.partition(":")
    place = Path(os.environ.get("COTERIE_DATA", "data")) / "sites" / file
    if not place.exists():
        raise CoterieError(
            f"{cell.experiment.name} needs {place}, which is not there",
            f"set COTERIE_DATA to a folder that holds sites/{file}",
        )
    return load(f"{kind}:{place}", cell.seed, **cell.data_options)


def reference_error(fed: Federation, label: str) -> float:
    """Return the test error of a reference; the ridge per site takes the best strength."""
    reference = Reference(fed)
    if label == "pooled":
        return reference.pooled()
    if label == "site intercepts":
        return reference.site_intercepts()
    if label == "boosted":
        return reference.boosted()
    return min(map(reference.per_site, ALPHAS))


def table_experiment(
    name: str,
    title: str,
    file: str,
    unseen: int,
    digits: int = 4,
    error: str = "MSE",
    **options: Any,
) -> Experiment:
    """Return an experiment with every method on one table, beside scikit-learn.

    Args:
        name: Name of the table.
        title: Title of the page.
        file: The data set.
        unseen: Number of sites that do not train.
        digits: Decimal places of the error.
        error: Name of the error.
        **options: Options of the data set.
    """
    return Experiment(
        name=f"natural.{name}",
        title=title,
        paper=OURS,
        where=name,
        lines=(*METHODS, *(TableLine(label=label) for label in REFERENCES)),
        columns=(DataColumn(label=name, data=file, data_options={"unseen": unseen, **options}),),
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
        work=measure_table,
        quantities=(
            Quantity("error", f"test error ({error})", digits, higher_is_better=False),
            Quantity(
                "unseen", f"{error} at sites that never trained", digits, higher_is_better=False
            ),
            NUMBER,
        ),
        claims=CLAIMS,
        sections={"What the groups are": describe_groups("ifca")},
        figures={
            "": ranking_figure(title, REFERENCES, "scikit-learn"),
            "-groups": level_figure("ifca"),
        },
    )


REAL_TABLES = (
    table_experiment(
        "heart",
        "Four hospitals",
        "folder:heart",
        0,
        error="log loss",
        label="disease",
        fill="median",
    ),
    table_experiment(
        "exam", "65 London schools", "table:exam.csv", 6, label="normexam", client_column="school"
    ),
    table_experiment(
        "hsb82",
        "160 high schools",
        "table:hsb82.csv",
        16,
        digits=3,
        label="mAch",
        client_column="school",
    ),
    table_experiment(
        "star",
        "79 Tennessee schools",
        "table:star_k.csv",
        8,
        digits=1,
        label="readk",
        client_column="schoolidk",
        fill="median",
    ),
    table_experiment(
        "azpro",
        "17 Arizona hospitals",
        "table:azpro.csv",
        2,
        digits=2,
        label="los",
        client_column="hospital",
    ),
    table_experiment(
        "lending",
        "Loans in 50 states",
        "table:lending.csv",
        5,
        error="log loss",
        label="Class",
        client_column="addr_state",
    ),
)


STEPS = (0.03, 0.1, 0.3, 1.0)
PEOPLE_METHODS = (
    tuned(ct.FedAvg(), lr=STEPS),
    tuned(ct.FineTuned(), lr=STEPS),
    tuned(ct.LocalOnly(), lr=STEPS),
    tuned(ct.Ditto(), lr=STEPS),
    tuned(ct.FedPer(), lr=STEPS),
    tuned(ct.IFCA(clusters="auto"), lr=STEPS),
    tuned(ct.CFLMGD(clusters="auto"), lr=STEPS),
    tuned(ct.OneShot(clusters="auto"), lr=STEPS),
    tuned(ct.FedSoft(clusters=2), lr=STEPS),
    tuned(ct.CGPFLHeur(), lr=(0.02, 0.08), inner_lr=(0.02, 0.1)),
)


def measure_person(cell: TableCell, folder: Path) -> Measured:
    """Train a cell; measure the scores, those of unseen people, and the groups."""
    fed = load_federation(cell)
    result = train(cell, fed, folder)
    measured = measure_scores(result, fed)
    values = measured.values | measure_unseen_and_groups(result, "accuracy")
    extra = {"tuned": tuned_settings(cell, result), **group_record(result, fed)}
    return Measured(values, measured.curves, extra)


def people_experiment(
    name: str, title: str, base: str, unseen: int, **data_options: Any
) -> Experiment:
    """Return an experiment with every method on one client per person.

    Args:
        name: Name of the experiment.
        title: Title of the page.
        base: The base data set.
        unseen: Number of people who do not train.
        **data_options: Options of the data set.
    """
    return Experiment(
        name=f"natural.{name}",
        title=title,
        paper=OURS,
        where=name,
        lines=PEOPLE_METHODS,
        columns=(
            DataColumn(
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
        work=measure_person,
        quantities=(
            ACCURACY,
            WORST,
            Quantity("unseen", "accuracy on people who never trained, %", 2, 100.0),
            NUMBER,
        ),
        claims=CLAIMS,
        tune_by="accuracy",
        sections={"What the groups are": describe_groups("ifca")},
        figures={"": ranking_figure(title)},
    )


PEOPLE = (
    people_experiment("har", "People's phones", "har", 3),
    people_experiment("writers", "Writers of letters", "unipen", 30, least=50),
)


SITES = 12
ARI = Quantity("ari", "agreement with the planted groups (ARI)", 2)


def measure_written_files(cell: TableCell, folder: Path) -> Measured:
    """Write the files of the sites, then measure a cell on them."""
    place = folder.with_name(f"{folder.name}-files")
    write_sites(place, cell.seed)
    fed = load(f"folder:{place}", cell.seed, **cell.data_options)
    measured = train_and_measure_errors(fed, cell, folder)
    if "sites" not in measured.extra:
        return measured
    return replace(measured, values={**measured.values, "ari": agreement_with_planted(measured)})


def write_sites(folder: Path, seed: int) -> None:
    """Write a CSV file per site; sites with odd numbers have a reversed score."""
    from sklearn.datasets import load_diabetes

    folder.mkdir(parents=True, exist_ok=True)
    patients = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": "score"})
    highest, lowest = patients["score"].max(), patients["score"].min()
    shuffled = np.random.default_rng(seed).permutation(len(patients))
    for number, rows in enumerate(np.array_split(shuffled, SITES)):
        table = patients.iloc[rows].copy()
        if planted_group(site_name(number)):
            table["score"] = highest + lowest - table["score"]
        table.to_csv(folder / f"{site_name(number)}.csv", index=False)


def site_name(number: int) -> str:
    """Return the name of a site: site-00, site-01, …"""
    return f"site-{number:02d}"


def planted_group(name: str) -> int:
    """Return 1 if a site has reversed scores, else 0."""
    return int(name.removeprefix("site-")) % 2


def agreement_with_planted(measured: Measured) -> float:
    """Return the ARI of the groups with the planted ones."""
    sites = measured.extra["sites"]
    found = np.array([site.group for site in sites])
    planted = np.array([planted_group(site.name) for site in sites])
    return float(agreement(found, planted)["ari"])


MADE = table_experiment(
    "sites",
    "Twelve sites in files, half of which score in reverse",
    "made:diabetes",
    2,
    digits=0,
    label="score",
)
PLANTED = (
    replace(
        MADE,
        work=measure_written_files,
        quantities=(MADE.quantities[0], ARI, *MADE.quantities[1:]),
        claims=(*MADE.claims, *(Beats("ifca", reference) for reference in REFERENCES)),
    ),
)

EXPERIMENTS = (*REAL_TABLES, *PEOPLE, *PLANTED)
