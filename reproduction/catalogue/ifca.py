"""Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.methods.fedavg import FedAvg, FineTuned
from coterie.methods.ifca import IFCA
from coterie.methods.local_only import LocalOnly
from reproduction.claims import Beats, Near
from reproduction.figures import curves_of
from reproduction.figures_of_groups import right_identities
from reproduction.spec import (
    ACCURACY,
    WORST,
    Experiment,
    Options,
    Quantity,
    TableColumn,
    TableLine,
    TableScale,
)
from reproduction.work import scores, trained

PAPER = "Ghosh et al. 2022"
ARI = Quantity("ari", "agreement of the groups with the planted ones (ARI)", 3)
CHOOSES_ON_TEST = {"choose_on": "test"}  # as the paper's test clients choose their cluster
STEPS: dict[str, Any] = {"lr": 0.1, "local_steps": 10}
NOTHING_ELSE: Options = {}


def table_1_lines(
    clusters: int, steps: dict[str, Any], data_alone: Options = NOTHING_ELSE
) -> tuple[TableLine, ...]:
    """The paper's methods, and two of ours.

    data_alone: options of the data of those who train alone.
    """
    ifca = IFCA(clusters=clusters, init="random", **steps)
    our_start = IFCA(clusters=clusters, init="updates", **steps)
    return (
        TableLine(label="IFCA", method=ifca, options=CHOOSES_ON_TEST),
        TableLine(
            label="IFCA, our start", method=our_start, options={"paper": False}, in_paper=False
        ),
        TableLine(label="global", method=FedAvg(**steps, weighted=False)),
        TableLine(label="local", method=LocalOnly(**steps), data_options=data_alone),
        TableLine(label="global, fine-tuned", method=FineTuned(**steps), in_paper=False),
    )


def rotated_mnist(clients: int, samples: int) -> TableColumn:
    """60,000·4 images in four rotations, cut into so many clients."""
    return TableColumn(
        label=f"({clients}, {samples})",
        data="rotated:mnist",
        data_options={"clients": clients, "samples": samples},
        model="mlp:200",
        options={"rounds": 300, "eval_every": 10},
    )


IFCA_IN_PAPER = {"(4800, 50)": 94.20, "(2400, 100)": 95.05, "(1200, 200)": 95.25}

TABLE_1_MNIST = Experiment(
    name="ifca.table1-mnist",
    title="IFCA on rotated MNIST",
    paper=PAPER,
    where="table 1, MNIST",
    lines=table_1_lines(4, STEPS, data_alone={"clients": 240}),
    columns=(rotated_mnist(4800, 50), rotated_mnist(2400, 100), rotated_mnist(1200, 200)),
    scales={
        "full": TableScale(
            seeds=5,
            settings={"patience": 5},
            lines=("IFCA, our start", "global", "local", "IFCA"),
            remarks=(
                "Once no client has changed its cluster for five rounds, each is sent its own "
                "centre alone, and all four in every tenth round.",
                "Local models are those of 240 clients: they do not depend on the others.",
            ),
        ),
        "medium": TableScale(
            seeds=3,
            data_options={"clients": 40, "test_samples": 100},
            options={"rounds": 40},
            columns=("(2400, 100)", "(4800, 50)"),
            remarks=(
                "Ten clients of each rotation have 1,000 or 500 images together, where the paper's "
                "have 60,000: models that are shared are worse, and nearer to local ones.",
            ),
        ),
        "smoke": TableScale(
            seeds=1,
            data_options={"clients": 12, "samples": 50, "test_samples": 20},
            options={"rounds": 3},
            columns=("(1200, 200)",),
        ),
    },
    work=trained(scores),
    quantities=(ACCURACY, WORST, ARI),
    printed={
        "IFCA": {
            "(4800, 50)": "94.20 ± .03",
            "(2400, 100)": "95.05 ± .02",
            "(1200, 200)": "95.25 ± .40",
        },
        "global": {
            "(4800, 50)": "86.74 ± .04",
            "(2400, 100)": "88.65 ± .08",
            "(1200, 200)": "89.73 ± .13",
        },
        "local": {
            "(4800, 50)": "63.32 ± .02",
            "(2400, 100)": "73.66 ± .04",
            "(1200, 200)": "80.05 ± .02",
        },
    },
    claims=(
        Beats("IFCA", "global", by=4),
        Beats("IFCA", "local", by=10),
        Beats("IFCA, our start", "global", by=4),
        Beats("IFCA, our start", "local", by=10),
        *(
            Near(line, column, number, within=1)
            for line in ("IFCA", "IFCA, our start")
            for column, number in IFCA_IN_PAPER.items()
        ),
    ),
    findings=(
        "With the paper's clients and 300 rounds, IFCA from our start (centres of clustered first "
        "updates) comes within 0.3 of the paper's numbers, one model for all within 0.2 "
        "and local models within 1.3; the groups are those that were planted.",
        "From the random start of seed 0 two rotations stay in one group, and a third in two, for "
        "all 300 rounds; even so IFCA ends with 93.0 and 94.7, 1.2 and 0.6 below the paper's "
        "numbers (at (2400, 100) with 94.1: `cfl_mgd.table2-mnist`). How often random starts end "
        "so is counted in `ifca.figure4-mnist`.",
        "Local models do not depend on how many clients there are: at every scale they may be "
        "compared with the paper's, and agree with them within 1.3 points.",
        "At the medium scale the gap to one model for all is larger than the paper's: that model "
        "needs the images, or the rounds, that are missing there.",
    ),
    open_points=(
        "The number of rounds is not printed: the released code has 300.",
        "The released code takes 10 steps on all of a client's images; so do we.",
        "A local model is tested on its client's own test images, not on all of its rotation; the "
        "mean over clients estimates the same.",
        "A client is tested on its share of the 10,000 test images at its rotation, 8, 16 or 33; "
        "the paper's test clients hold as many images as those that train.",
        "Test clients choose their cluster by their test images, as in the paper; in the line with "
        "our start, clients choose by their training images.",
        "The released code trains local models for 10 rounds; ours train as long as the others.",
    ),
    figures={
        "": curves_of("accuracy", "Test accuracy, %"),
        "-groups": right_identities,
    },
)

FIGURE_4_MNIST = Experiment(
    name="ifca.figure4-mnist",
    title="When IFCA finds the groups, rotated MNIST",
    paper=PAPER,
    where="figure 4, MNIST",
    lines=table_1_lines(4, STEPS)[:2],
    columns=(replace(rotated_mnist(1200, 200), options={"rounds": 40, "eval_every": 20}),),
    scales={
        "full": TableScale(seeds=5, settings={"patience": 5}),
        "medium": TableScale(seeds=5, data_options={"clients": 240, "test_samples": 33}),
        "smoke": TableScale(
            seeds=1,
            data_options={"clients": 12, "samples": 50, "test_samples": 20},
            options={"rounds": 3},
        ),
    },
    work=trained(scores),
    quantities=(ARI, ACCURACY),
    claims=(
        Near("IFCA", "(1200, 200)", 1.0, within=0.01),
        Near("IFCA, our start", "(1200, 200)", 1.0, within=0.01),
        Beats("IFCA, our start", "IFCA"),
    ),
    findings=(
        "At the medium scale three of five random starts have all clients in their groups from "
        "round 3 on. The other two leave two rotations in one group, and one centre without any "
        "client, and no later round mends it. Our start has all clients in their groups before "
        "round 1.",
    ),
    open_points=(
        "The paper draws one run, in which all clients are in their groups from about round 30 on; "
        "how many starts do so is not said. 40 rounds are run here.",
        "Which of the three sizes of table 1 is drawn is not said.",
    ),
    figures={"": right_identities},
)


EXPERIMENTS = (TABLE_1_MNIST, FIGURE_4_MNIST)
