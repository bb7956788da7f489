"""FedSoft's tables and figure 2 on handwritten letters; UNIPEN stands in for EMNIST."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.data import letter_holdouts
from coterie.methods.fedavg import FineTuned
from coterie.methods.fedem import FedEM
from coterie.methods.fedsoft import FedSoft
from coterie.methods.ifca import IFCA
from coterie.methods.local_only import LocalOnly
from reproduction.catalogue.fedsoft import PAPER
from reproduction.claims import Beats, Rises
from reproduction.figures import curves_of
from reproduction.figures_of_groups import weights_of_clients
from reproduction.figures_of_tables import against_columns
from reproduction.sources import LOCAL, TEST, WEIGHTS, best_centre, on_sources
from reproduction.spec import (
    Experiment,
    Measured,
    RecordedSearch,
    TableCell,
    TableColumn,
    TableLine,
    TableScale,
)
from reproduction.work import federation, train

LOCAL_WORK: dict[str, Any] = {"lr": 1e-5, "local_epochs": 5, "batch": 5, "solver": "adam"}
LOWER, UPPER = best_centre("lower"), best_centre("upper")
OPEN_POINTS = (
    "EMNIST is not at hand: letters of UNIPEN stand in for it, so that only the order of the "
    "methods and the gaps between them may be compared with the paper's.",
    "The paper prints no channels and one ReLU only, after the 512 units; here there are 32 and 64 "
    "channels, with a ReLU after each convolution, too. Models start as torch starts them, not by "
    "Xavier's rule.",
    "Clients are drawn with replacement for each cluster, where the paper's algorithm draws sets.",
    "The paper takes the centre of largest weight as a client's own model under IFCA and FedEM. "
    "IFCA does so here; FedEM answers with its mixture, which is how it is meant to be used.",
    "A centre is measured on at most 2,000 test letters of each source.",
)


def centres_on_letters(cell: TableCell, folder: Path) -> Measured:
    """Train, and measure the centres on letters of each source."""
    fed = federation(cell)
    result = train(cell, fed, folder)
    return on_sources(result, fed, letter_holdouts(angles=cell.data_options.get("angles", (0,))))


def fedsoft(label: str = "FedSoft", clusters: int = 2, pull: float = 0.1) -> TableLine:
    """A line of FedSoft."""
    method = FedSoft(clusters=clusters, pull=pull, select=60, **LOCAL_WORK)
    return TableLine(label=label, method=method)


def baselines(clusters: int, in_paper: bool) -> tuple[TableLine, TableLine]:
    """What the paper compares FedSoft with."""
    ifca = IFCA(clusters=clusters, init="random", **LOCAL_WORK)
    fedem = FedEM(clusters=clusters, **LOCAL_WORK)
    return (
        TableLine(label="IFCA", method=ifca, in_paper=in_paper),
        TableLine(label="FedEM", method=fedem, in_paper=in_paper),
    )


ALONE = TableLine(label="local", method=LocalOnly(**LOCAL_WORK), in_paper=False)
FINE_TUNED = TableLine(label="FedAvg, fine-tuned", method=FineTuned(**LOCAL_WORK), in_paper=False)


def letters(label: str, **data_options: Any) -> TableColumn:
    """100 clients that mix lower-case and upper-case letters."""
    return TableColumn(
        label=label,
        data="letters:unipen",
        data_options=data_options,
        model="cnn",
        options={"rounds": 200, "eval_every": 10},
    )


def scales(smoke_column: str, smoke_lines: tuple[str, ...]) -> dict[str, TableScale]:
    """The paper's setting; a network without convolutions on fewer clients; a smoke test."""
    return {
        "full": TableScale(seeds=5),
        "medium": TableScale(
            seeds=3,
            data_options={"clients": 40, "samples": 100, "test_samples": 50},
            options={"rounds": 30, "eval_every": 10},
            settings={"lr": 0.01, "local_epochs": 2, "batch": 10, "select": 24, "finetune": 5},
            model="mlp:200",
            remarks=(
                "One hidden layer of 200 units stands in for the convolutions, which are slow on a "
                "processor: with it 40 clients come within ten points of the paper's accuracies "
                "where there are two sources.",
                "With so few rounds the paper's step of 1e-5 would leave the models where they "
                "started: it is larger here.",
            ),
        ),
        "smoke": TableScale(
            seeds=1,
            data_options={"clients": 6, "samples": 20, "test_samples": 10},
            options={"rounds": 2},
            settings={"lr": 0.001, "local_epochs": 1, "batch": 10, "select": 4},
            model="cnn:16",
            lines=smoke_lines,
            columns=(smoke_column,),
        ),
    }


def with_lines(known: dict[str, TableScale], lines: tuple[str, ...]) -> dict[str, TableScale]:
    """The same scales, of which the medium one has these lines alone."""
    return {**known, "medium": replace(known["medium"], lines=lines)}


MIXTURES = ("10:90", "30:70", "linear", "random")


def by_mixture(*numbers: str) -> dict[str, str]:
    """The paper's numbers, in the order of the mixtures."""
    return dict(zip(MIXTURES, numbers))


TABLE_1 = Experiment(
    name="fedsoft.table1-letters",
    title="FedSoft on mixtures of lower-case and upper-case letters",
    paper=PAPER,
    where="table 1, letters",
    lines=(fedsoft(), ALONE, FINE_TUNED),
    columns=tuple(letters(mixture, mixture=mixture) for mixture in MIXTURES),
    scales=scales("10:90", ("FedSoft", "local")),
    work=centres_on_letters,
    quantities=(LOWER, UPPER, LOCAL, TEST, WEIGHTS),
    printed={"FedSoft": by_mixture("70.3", "65.9", "71.8", "72.5")},
    printed_also={"upper": {"FedSoft": by_mixture("74.6", "70.4", "74.1", "77.7")}},
    claims=(
        Rises((("FedSoft", "30:70"), ("FedSoft", "10:90"))),
        Rises((("FedSoft", "30:70"), ("FedSoft", "linear"))),
        Rises((("FedSoft", "30:70"), ("FedSoft", "random"))),
        Beats("FedSoft", "local", quantity="accuracy"),
    ),
    findings=(
        "The centres have the same accuracy with every mixture, within a point or so; in the paper "
        "30:70 is five points behind the others. The two cases are much alike, and a centre learns "
        "both: what mixture it is trained on matters little.",
    ),
    open_points=OPEN_POINTS,
    figures={"": against_columns("Test accuracy on lower case, of the best centre, %")},
)

STEPS_FOUND = {"FedSoft": 0.01, "IFCA": 0.003, "FedEM": 0.01}
TABLE_2 = Experiment(
    name="fedsoft.table2",
    title="FedSoft, IFCA and FedEM on mixtures of letters",
    paper=PAPER,
    where="table 2 and figure 2",
    lines=(fedsoft(), *baselines(2, in_paper=True), ALONE, FINE_TUNED),
    columns=(letters("10:90", mixture="10:90"), letters("linear", mixture="linear")),
    scales=scales("10:90", ("FedSoft", "IFCA", "FedEM")),
    work=centres_on_letters,
    quantities=(LOWER, UPPER, LOCAL, TEST, WEIGHTS),
    printed={
        "FedSoft": {"10:90": "70.3", "linear": "71.8"},
        "IFCA": {"10:90": "58.5", "linear": "55.4"},
        "FedEM": {"10:90": "67.4", "linear": "65.9"},
    },
    printed_also={
        "upper": {
            "FedSoft": {"10:90": "74.6", "linear": "74.1"},
            "IFCA": {"10:90": "61.3", "linear": "57.2"},
            "FedEM": {"10:90": "69.8", "linear": "69.0"},
        },
        "local": {
            "FedSoft": {"10:90": "90.9", "linear": "86.5"},
            "IFCA": {"10:90": "65.2", "linear": "62.9"},
            "FedEM": {"10:90": "63.6", "linear": "62.4"},
        },
    },
    claims=(
        Beats("FedSoft", "IFCA", by=5, quantity="lower"),
        Beats("FedSoft", "FedEM", by=1, quantity="lower"),
        Beats("FedEM", "IFCA", by=5, quantity="lower"),
        Beats("FedSoft", "IFCA", by=5, quantity="upper"),
        Beats("FedSoft", "FedEM", by=1, quantity="upper"),
        Beats("FedSoft", "IFCA", by=10, quantity="local"),
        Beats("IFCA", "FedEM", quantity="local"),
    ),
    findings=(
        "The centres of all three methods are level here, at 62 to 65 % on lower case and 67 to 72 "
        "% on upper case; in the paper FedSoft's are 3 to 6 points ahead of FedEM's and 12 to 17 "
        "ahead of IFCA's. FedSoft wants longer steps than the others: with a third of this one it "
        "loses four points on held-out rows, and IFCA none.",
        "With the first seed, which is drawn, the weights are much as in the paper's figure 2: "
        "IFCA tells the two halves of the clients apart, FedSoft's mostly lie on the right sides, "
        "and FedEM's are all about one half. With the other seeds IFCA does not.",
        "Clients' own models under FedSoft fit their training rows best, as in the paper, which "
        "measures them on nothing else. On test rows they are seven points behind IFCA and FedEM: "
        "what they gain is learnt by heart.",
    ),
    open_points=OPEN_POINTS,
    tuned=tuple(
        RecordedSearch(
            line=line,
            column="10:90",
            over={"lr": (0.001, 0.003, 0.01)},
            best={"lr": best},
            taken="0.01, the largest that was tried, is taken for all methods",
        )
        for line, best in STEPS_FOUND.items()
    ),
    figures={
        "": weights_of_clients("10:90", ("FedSoft", "IFCA", "FedEM"), "lower case"),
        "-rounds": curves_of("accuracy", "Test accuracy of the clients' own models, %"),
    },
)

FOUR = ("lower", "lower, 90°", "upper", "upper, 90°")
TABLE_4 = Experiment(
    name="fedsoft.table4",
    title="FedSoft on mixtures of letters of two cases, upright and turned",
    paper=PAPER,
    where="table 4",
    lines=(
        fedsoft(clusters=4),
        *baselines(4, in_paper=False),
        ALONE,
        FINE_TUNED,
    ),
    columns=(letters("four sources", mixture="random", angles=(0, 90)),),
    scales=with_lines(
        scales("four sources", ("FedSoft", "FedEM")), ("FedSoft", "local", "FedAvg, fine-tuned")
    ),
    work=centres_on_letters,
    quantities=(*map(best_centre, FOUR), LOCAL, TEST, WEIGHTS),
    printed={"FedSoft": {"four sources": "72.3"}},
    printed_also={
        "lower, 90°": {"FedSoft": {"four sources": "67.6"}},
        "upper": {"FedSoft": {"four sources": "70.8"}},
        "upper, 90°": {"FedSoft": {"four sources": "71.9"}},
    },
    claims=(Beats("FedSoft", "local", quantity="accuracy"),),
    open_points=OPEN_POINTS,
    figures={"": curves_of("accuracy", "Test accuracy of the clients' own models, %")},
)

STRENGTHS = {"λ=0": 0.0, "λ=0.1": 0.1, "λ=1": 1.0}
TABLE_5 = Experiment(
    name="fedsoft.table5",
    title="FedSoft against λ, letters",
    paper=PAPER,
    where="table 5",
    lines=(*(fedsoft(label, pull=pull) for label, pull in STRENGTHS.items()), ALONE, FINE_TUNED),
    columns=(letters("linear", mixture="linear"),),
    scales=scales("linear", ("λ=0", "λ=0.1")),
    work=centres_on_letters,
    quantities=(LOWER, UPPER, LOCAL, TEST, WEIGHTS),
    printed={
        "λ=0": {"linear": "50.1"},
        "λ=0.1": {"linear": "71.8"},
        "λ=1": {"linear": "55.2"},
    },
    printed_also={
        "upper": {
            "λ=0": {"linear": "47.7"},
            "λ=0.1": {"linear": "74.1"},
            "λ=1": {"linear": "58.7"},
        },
        "local": {
            "λ=0": {"linear": "72.7"},
            "λ=0.1": {"linear": "86.5"},
            "λ=1": {"linear": "63.6"},
        },
    },
    claims=(
        Beats("λ=0.1", "λ=0", by=5, quantity="lower"),
        Beats("λ=0.1", "λ=1", by=5, quantity="lower"),
        Beats("λ=0.1", "λ=0", by=5, quantity="local"),
        Beats("λ=0.1", "λ=1", by=5, quantity="local"),
    ),
    findings=(
        "λ = 0.1 is best for the centres, as in the paper: 28 points ahead of λ = 0 and 11 of λ = "
        "1, where the paper has 22 and 17. With λ = 0 clients' models have nothing to do with each "
        "other, and their mean is poor; with λ = 1 they hardly leave the centres.",
        "With λ = 0 nothing holds a client's model back from its own training rows: it fits these "
        "better than with any other λ, and other rows worse. That the paper's fits them worse may "
        "be for want of steps: its step size of 1e-5 is very small.",
    ),
    open_points=OPEN_POINTS,
    figures={"": curves_of("accuracy", "Test accuracy of the clients' own models, %")},
)

EXPERIMENTS = (TABLE_1, TABLE_2, TABLE_4, TABLE_5)
