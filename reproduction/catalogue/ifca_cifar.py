"""IFCA's table 1 and figure 4 on rotated CIFAR-10."""

from __future__ import annotations

from typing import Any

from reproduction.catalogue.ifca import ARI, PAPER, table_1_lines
from reproduction.claims import Beats
from reproduction.figures import curves_of
from reproduction.figures_of_groups import right_identities
from reproduction.spec import ACCURACY, WORST, Experiment, TableColumn, TableScale
from reproduction.work import scores, trained

STEPS: dict[str, Any] = {"lr": 0.25, "local_epochs": 5, "batch": 50, "decay": 0.99}
CIFAR = TableColumn(
    label="(200, 500)",
    data="rotated:cifar10",
    data_options={"clients": 200, "samples": 500, "angles": (0, 180)},
    model="cnn",
    options={"rounds": 600, "eval_every": 20, "participation": 0.1},
)
MEDIUM_DATA = {"clients": 40, "samples": 200, "test_samples": 50}
SMOKE = TableScale(
    seeds=1,
    data_options={"clients": 4, "samples": 20, "test_samples": 10},
    options={"rounds": 2, "eval_every": 1, "participation": 0.5},
    settings={"local_epochs": 1},
    model="cnn:16",
    lines=("IFCA",),
)
TOO_LONG = (
    "The paper's setting takes days on a processor: this is a quarter of the network's channels, a "
    "twelfth of the images, and 10 clients in a round where the paper has 20."
)

TABLE_1_CIFAR = Experiment(
    name="ifca.table1-cifar",
    title="IFCA on rotated CIFAR-10",
    paper=PAPER,
    where="table 1 and figure 4, CIFAR",
    lines=table_1_lines(2, STEPS),
    columns=(CIFAR,),
    scales={
        "full": TableScale(seeds=5),
        "medium": TableScale(
            seeds=3,
            data_options=MEDIUM_DATA,
            options={"rounds": 30, "eval_every": 10, "participation": 0.25},
            settings={"local_epochs": 3, "finetune": 5},
            model="cnn:4",
            remarks=(TOO_LONG,),
        ),
        "smoke": SMOKE,
    },
    work=trained(scores),
    quantities=(ACCURACY, WORST, ARI),
    printed={
        "IFCA": {"(200, 500)": "81.51 ± 1.37"},
        "global": {"(200, 500)": "77.87 ± .39"},
        "local": {"(200, 500)": "33.97 ± 1.19"},
    },
    claims=(Beats("IFCA", "global", by=2), Beats("global", "local", by=10)),
    findings=(
        "One of three random starts has found the two rotations after 30 rounds, and our start "
        "with two of three seeds; the paper's runs have them by round 10. What the accuracies say "
        "of methods at this scale is little.",
    ),
    open_points=(
        "Step size and rounds are not printed: those of the released code, 0.25 and 600; τ = 5 are "
        "passes over a client's images there, and here.",
        "Images are not augmented: flips and crops are not built in. The network has two "
        "convolutions (32, 64) and two linear layers (512, 10); the released code's is (64, 64) "
        "and (384, 192, 10) on crops of 24×24.",
        "The released code draws the start anew until every cluster attracts 35 % of the clients; "
        "ours takes the first.",
        "A client is tested on its share of the test images at its rotation, 100 of them; the "
        "paper's test clients hold as many images as those that train.",
        "Test clients choose their cluster by their test images, as in the paper; in the line with "
        "our start, clients choose by their training images.",
        "Of local models only the clients that take part in a round train in it.",
    ),
    figures={
        "": curves_of("accuracy", "Test accuracy, %"),
        "-groups": right_identities,
    },
)

EXPERIMENTS = (TABLE_1_CIFAR,)
