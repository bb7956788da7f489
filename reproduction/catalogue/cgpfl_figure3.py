"""CGPFL's figures 3 to 5: accuracy against the number of groups, and who is in which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from coterie.methods.cgpfl import CGPFL
from reproduction.catalogue.cgpfl import (
    FINE_TUNED,
    FMNIST_MLR,
    FULL,
    HEUR,
    INNER,
    LAMBDA,
    LOCAL,
    MNIST_MLR,
    OPEN_POINTS,
    PAPER,
    PFEDME,
    SHORT,
    SMOKE_DATA,
    TIED,
)
from reproduction.claims import Beats
from reproduction.figures import curves_of
from reproduction.figures_of_groups import against_groups, groups_over_rounds
from reproduction.spec import (
    ACCURACY,
    WORST,
    Experiment,
    Measured,
    TableCell,
    TableLine,
    TableScale,
    with_settings,
)
from reproduction.work import federation, group_history, scores, train


def scores_and_groups(cell: TableCell, folder: Path) -> Measured:
    """The scores, and who was in which group after each round."""
    fed = federation(cell)
    result = train(cell, fed, folder)
    measured = scores(result, fed)
    groups = group_history(result)
    if groups is None:
        return measured
    number = {"groups": float(len(set(groups[-1])))}
    return Measured(measured.values | number, measured.curves, {"groups": groups})


NOT_FIXED = (HEUR, PFEDME, LOCAL, FINE_TUNED)  # lines without a number of groups that is given
COUNTS = (1, 2, 4, 6, 8, 12, 16, 20)
FIGURE_3 = Experiment(
    name="cgpfl.figure3",
    title="Accuracy against the number of groups, and what Heur chooses",
    paper=PAPER,
    where="figures 3 to 5",
    lines=(
        *(
            TableLine(
                label=f"K={k}",
                method=with_settings(
                    CGPFL(clusters=k, **TIED, **LAMBDA), {"inner_lr": INNER["CGPFL(4)"]}
                ),
            )
            for k in COUNTS
        ),
        *NOT_FIXED,
    ),
    columns=(MNIST_MLR, FMNIST_MLR),
    scales={
        "full": FULL,
        "medium": replace(
            SHORT,
            lines=(*(f"K={k}" for k in (1, 2, 4, 8, 20)), *(line.label for line in NOT_FIXED)),
            columns=("MNIST-MLR",),
        ),
        "smoke": TableScale(
            seeds=1,
            data_options=SMOKE_DATA,
            options={"rounds": 2},
            lines=("K=2", "CGPFL-Heur"),
            columns=("MNIST-MLR",),
        ),
    },
    work=scores_and_groups,
    quantities=(ACCURACY, WORST),
    claims=(Beats("CGPFL-Heur", "K=1"), Beats("K=4", "K=1"), Beats("K=1", "pFedMe(PM)")),
    findings=(
        "At full scale, with one seed, accuracy rises with the number of groups up to the last "
        "(89.7 % with one, 94.7 with 4, 96.9 with 12, 97.7 with 20), and Heur, which chose 12, has "
        "what 12 groups have. In the paper Heur's choice lies at the best number, in between.",
        "At the medium scale Heur chose 10, 12 and 7 groups and has 93.9 %; 20 groups have 96.0 %, "
        "and one has 95.0 %.",
        "As in the paper the distances between models grow less with every round. After 200 rounds "
        "they still grow.",
    ),
    open_points=OPEN_POINTS,
    figures={
        "": against_groups({f"K={k}": k for k in COUNTS}, "CGPFL-Heur", ("pFedMe(PM)", "local")),
        "-rounds": curves_of(
            "accuracy",
            "Test accuracy, %",
            lines=("K=1", "K=2", "K=4", "K=8", "CGPFL-Heur", "pFedMe(PM)", "local"),
        ),
        "-groups": groups_over_rounds("CGPFL-Heur"),
        "-distances": curves_of(
            "distance_between_models",
            "Distance between two clients' models",
            lines=("K=1", "K=2", "K=4", "K=8", "CGPFL-Heur"),
        ),
        "-iterations": curves_of(
            "k_means_iterations", "Iterations of k-means in a round", lines=("K=2", "K=4", "K=8")
        ),
    },
)

EXPERIMENTS = (FIGURE_3,)
