"""IFCA's table 2 by writers; UNIPEN stands in for FEMNIST."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.data import Federation
from coterie.methods.fedavg import FedAvg, FineTuned
from coterie.methods.ifca import IFCA
from coterie.methods.local_only import LocalOnly
from coterie.methods.one_shot import OneShot
from coterie.result import Result
from reproduction.catalogue.ifca import PAPER
from reproduction.claims import AtMost, Beats
from reproduction.figures import curves_of
from reproduction.spec import (
    ACCURACY,
    WORST,
    Experiment,
    Measured,
    Quantity,
    TableColumn,
    TableLine,
    TableScale,
)
from reproduction.work import scores, trained

STEPS: dict[str, Any] = {"lr": 0.1, "local_epochs": 1, "batch": 10}
SHARED = ("1", "4", "8")  # both convolutions and the first linear layer of cnn


def sharing(clusters: int, init: str = "random") -> IFCA:
    """IFCA in which clusters have a last layer of their own, and all else in common."""
    return IFCA(clusters=clusters, init=init, share=SHARED, **STEPS)


def scores_and_number(result: Result, fed: Federation) -> Measured:
    """The scores, and how many clusters have a client at the end."""
    measured = scores(result, fed)
    groups = result.trained.hard_groups
    if groups is None:
        return measured
    return replace(measured, values={**measured.values, "groups": float(len(set(groups.tolist())))})


NUMBER = Quantity("groups", "clusters that have a client", 1, higher_is_better=False)
TABLE_2 = Experiment(
    name="ifca.table2",
    title="IFCA with shared weights, one client per writer",
    paper=PAPER,
    where="table 2",
    lines=(
        TableLine(label="IFCA(2)", method=sharing(2)),
        TableLine(label="IFCA(3)", method=sharing(3)),
        TableLine(label="IFCA(5)", method=sharing(5)),
        TableLine(label="one-shot(2)", method=OneShot(clusters=2, **STEPS)),
        TableLine(label="one-shot(3)", method=OneShot(clusters=3, **STEPS)),
        TableLine(label="global", method=FedAvg(**STEPS)),
        TableLine(label="local", method=LocalOnly(**STEPS)),
        TableLine(
            label="IFCA(2), our start",
            method=sharing(2, init="updates"),
            options={"paper": False},
            in_paper=False,
        ),
        TableLine(label="global, fine-tuned", method=FineTuned(**STEPS), in_paper=False),
    ),
    columns=(
        TableColumn(
            label="writers",
            data="by_key:unipen",
            data_options={"least": 50},
            model="cnn",
            options={"rounds": 300, "eval_every": 20},
        ),
    ),
    scales={
        "full": TableScale(seeds=5),
        "medium": TableScale(
            seeds=3,
            data_options={"clients": 120, "samples": 100},
            options={"rounds": 100},
            settings={"share": ("1",)},
            model="mlp:200",
            remarks=(
                "One hidden layer of 200 units, which all clusters share, stands in for the "
                "convolutions, which are slow on a processor. The writers are 120 of the 252 with "
                "50 training letters.",
            ),
        ),
        "smoke": TableScale(
            seeds=1,
            data_options={"clients": 5, "samples": 20},
            options={"rounds": 2},
            settings={"solve_steps": 2},
            model="cnn:16",
        ),
    },
    work=trained(scores_and_number),
    quantities=(ACCURACY, WORST, NUMBER),
    printed={
        "IFCA(2)": {"writers": "87.99 ± .35"},
        "IFCA(3)": {"writers": "87.89 ± .52"},
        "one-shot(2)": {"writers": "87.41 ± .39"},
        "one-shot(3)": {"writers": "87.38 ± .37"},
        "global": {"writers": "84.45 ± .51"},
        "local": {"writers": "75.85 ± .72"},
    },
    claims=(
        Beats("IFCA(2)", "one-shot(2)"),
        Beats("IFCA(2)", "global", by=2),
        Beats("global", "local", by=5),
        Beats("one-shot(2)", "global", by=2),
        AtMost("IFCA(5)", {"writers": 3.0}, "the paper's number of clusters", quantity="groups"),
    ),
    findings=(
        "As in the paper, models of clusters are on average ahead of one model for all, and that "
        "is ahead of local ones; the gaps are smaller, and IFCA needs three clusters or our start "
        "for it: from random last layers two clusters gain nothing.",
        "With five clusters all five keep clients, and the accuracy goes on rising slowly; in the "
        "paper only three stay. Writers here differ by more than three styles, or the clusters fit "
        "what is left of noise.",
        "Fine-tuning one model for each writer is four points ahead of everything else: what sets "
        "writers apart is mostly their own. The paper has no such line.",
    ),
    open_points=(
        "FEMNIST is not at hand: UNIPEN, 62 classes of 307 writers, stands in for it, so that only "
        "the order of the methods and the gaps between them may be compared with the paper's.",
        "Steps, batches and rounds are not printed: one pass a round in batches of 10.",
        "The released code trains one model for all first and then only last layers, warm-started "
        "on thirds of the clients; here all layers train from the first round on.",
        "One-shot clusters whole models: it knows no shared layers.",
    ),
    figures={"": curves_of("accuracy", "Test accuracy, %")},
)

EXPERIMENTS = (TABLE_2,)
