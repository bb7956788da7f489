"""Zhao, Xie, Xing, Zhang, Ma: clustered federated learning with momentum (CFL-MGD)."""

from __future__ import annotations

from typing import Any

from coterie.methods.cfl_mgd import CFLMGD
from coterie.methods.fedavg import FedAvg, FineTuned
from coterie.methods.fedbcd import FedBCD
from coterie.methods.ifca import IFCA
from coterie.methods.local_only import LocalOnly
from reproduction.catalogue.ifca import ARI
from reproduction.claims import Beats, ReachesSooner
from reproduction.figures import curves_of
from reproduction.spec import ACCURACY, WORST, Experiment, TableColumn, TableLine, TableScale
from reproduction.work import scores, trained

PAPER = "Zhao et al. 2023"
CHOOSES_ON_TEST = {"choose_on": "test"}  # as IFCA's test clients do
STEPS: dict[str, Any] = {"lr": 0.1, "local_steps": 10}

TABLE_2_MNIST = Experiment(
    name="cfl_mgd.table2-mnist",
    title="CFL-MGD on rotated MNIST",
    paper=PAPER,
    where="table 2 and figure 4, MNIST",
    lines=(
        TableLine(
            label="CFL-MGD",
            method=CFLMGD(clusters=4, init="random", beta=0.9, **STEPS),
            options=CHOOSES_ON_TEST,
        ),
        TableLine(
            label="IFCA", method=IFCA(clusters=4, init="random", **STEPS), options=CHOOSES_ON_TEST
        ),
        TableLine(label="FedAvg", method=FedAvg(**STEPS, weighted=False)),
        TableLine(label="FedBCD", method=FedBCD()),
        TableLine(label="local", method=LocalOnly(**STEPS), in_paper=False),
        TableLine(label="FedAvg, fine-tuned", method=FineTuned(**STEPS), in_paper=False),
    ),
    columns=(
        TableColumn(
            label="MNIST",
            data="rotated:mnist",
            data_options={"clients": 2400, "samples": 100},
            model="mlp:200",
            options={"rounds": 300, "eval_every": 5},
        ),
    ),
    scales={
        "full": TableScale(seeds=5),
        "medium": TableScale(
            seeds=3,
            data_options={"clients": 160, "test_samples": 50},
            options={"rounds": 20, "eval_every": 1},
            remarks=(
                "Forty clients of each rotation have 4,000 images together, where the paper's have "
                "60,000: all numbers are lower.",
            ),
        ),
        "smoke": TableScale(
            seeds=1,
            data_options={"clients": 12, "samples": 50, "test_samples": 20},
            options={"rounds": 3, "eval_every": 1},
        ),
    },
    work=trained(scores),
    quantities=(ACCURACY, WORST, ARI),
    printed={
        "CFL-MGD": {"MNIST": "96.05 ± .12"},
        "IFCA": {"MNIST": "92.60 ± .27"},
        "FedAvg": {"MNIST": "89.84 ± .32"},
        "FedBCD": {"MNIST": "70.06 ± .92"},
    },
    claims=(
        Beats("CFL-MGD", "IFCA"),
        Beats("IFCA", "FedAvg"),
        Beats("FedAvg", "FedBCD"),
        ReachesSooner("CFL-MGD", "IFCA", share=0.5),
    ),
    findings=(
        "At the paper's scale, from the same random start, CFL-MGD reaches IFCA's last accuracy in "
        "round 50 of 300 and ends 2.9 points ahead (3.5 in the paper). The start leaves both with "
        "two rotations in one group and one rotation in two (ARI 0.63), which more rounds do not "
        "mend; from our start IFCA has 95.0 (`ifca.table1-mnist`).",
        "The momentum carries centres off before the groups have settled: at the medium scale one "
        "of three random starts ends with a wrong partition (ARI 0.7), from which IFCA finds the "
        "right one. CFL-MGD is ahead of IFCA even so, and by more where its groups are right.",
        "Where both have learnt all they can, momentum is no better: a first medium scale of 40 "
        "clients and 40 rounds (commit 6f418bc), where both fit their few images by round 20, "
        "ended with 87.5 % against IFCA's 88.3 %, though CFL-MGD led for the first eight rounds.",
    ),
    open_points=(
        "Steps, batch, momentum and participation on MNIST are not printed: IFCA's ten steps on "
        "all of a client's images, momentum 0.9, and everybody in every round.",
        "IFCA's own paper has 95.05 for IFCA on the same data.",
        "A client is tested on its share of the test images at its rotation, 16 of them.",
        "FedBCD trains the network of the others; the paper's has three layers.",
        "The loss that is drawn is that of the test images; the paper draws that of the training "
        "images.",
    ),
    figures={
        "": curves_of("accuracy", "Test accuracy, %"),
        "-loss": curves_of("loss", "Test loss", log=True),
    },
)

EXPERIMENTS = (TABLE_2_MNIST,)
