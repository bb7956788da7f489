"""CFL-MGD's column of CIFAR-10 in table 2, and figure 3."""

from __future__ import annotations

from typing import Any

from coterie.methods.cfl_mgd import CFLMGD
from coterie.methods.fedavg import FedAvg, FineTuned
from coterie.methods.fedbcd import FedBCD
from coterie.methods.ifca import IFCA
from coterie.methods.local_only import LocalOnly
from reproduction.catalogue.cfl_mgd import CHOOSES_ON_TEST, PAPER
from reproduction.catalogue.ifca import ARI
from reproduction.catalogue.ifca_cifar import MEDIUM_DATA, TOO_LONG
from reproduction.claims import Beats
from reproduction.figures import curves_of
from reproduction.spec import ACCURACY, WORST, Experiment, TableColumn, TableLine, TableScale
from reproduction.work import scores, trained

STEPS: dict[str, Any] = {"lr": 0.01, "local_steps": 50, "batch": 50, "decay": 0.99}

TABLE_2_CIFAR = Experiment(
    name="cfl_mgd.table2-cifar",
    title="CFL-MGD on rotated CIFAR-10",
    paper=PAPER,
    where="table 2 and figure 3, CIFAR-10",
    lines=(
        TableLine(
            label="CFL-MGD",
            method=CFLMGD(clusters=2, init="random", beta=0.9, **STEPS),
            options=CHOOSES_ON_TEST,
        ),
        TableLine(
            label="IFCA", method=IFCA(clusters=2, init="random", **STEPS), options=CHOOSES_ON_TEST
        ),
        TableLine(label="FedAvg", method=FedAvg(**STEPS, weighted=False)),
        TableLine(label="FedBCD", method=FedBCD(**STEPS)),
        TableLine(label="local", method=LocalOnly(**STEPS), in_paper=False),
        TableLine(label="FedAvg, fine-tuned", method=FineTuned(**STEPS), in_paper=False),
    ),
    columns=(
        TableColumn(
            label="CIFAR-10",
            data="rotated:cifar10",
            data_options={"clients": 200, "samples": 500, "angles": (0, 180)},
            model="cnn",
            options={"rounds": 300, "eval_every": 5, "participation": 0.1},
        ),
    ),
    scales={
        "full": TableScale(seeds=5),
        "medium": TableScale(
            seeds=3,
            data_options=MEDIUM_DATA,
            options={"rounds": 30, "eval_every": 10, "participation": 0.25},
            settings={"local_steps": 8, "finetune": 5},
            model="cnn:4",
            remarks=(TOO_LONG,),
        ),
        "smoke": TableScale(
            seeds=1,
            data_options={"clients": 4, "samples": 20, "test_samples": 10},
            options={"rounds": 2, "eval_every": 1, "participation": 0.5},
            settings={"local_steps": 1, "batch": 20},
            model="cnn:16",
            lines=("CFL-MGD", "FedBCD"),
        ),
    },
    work=trained(scores),
    quantities=(ACCURACY, WORST, ARI),
    printed={
        "CFL-MGD": {"CIFAR-10": "80.43 ± .14"},
        "IFCA": {"CIFAR-10": "75.53 ± .90"},
        "FedAvg": {"CIFAR-10": "69.52 ± 1.09"},
        "FedBCD": {"CIFAR-10": "47.31 ± 1.50"},
    },
    claims=(
        Beats("CFL-MGD", "IFCA", by=2),
        Beats("IFCA", "FedAvg", by=2),
        Beats("FedAvg", "FedBCD", by=5),
    ),
    findings=(
        "With the paper's step of 0.01 and the 240 local steps of the medium scale, no method "
        "without momentum has left chance, 10 %: momentum 0.9 makes steps up to ten times as "
        "long. That CFL-MGD is far ahead says that it is faster, as the paper has it, and nothing "
        "of where the methods end.",
        "Only one of CFL-MGD's three seeds has found the two rotations, and none of IFCA's: the "
        "lead is that of momentum, not of groups.",
    ),
    open_points=(
        "Local steps and batch are not printed: 50 steps in batches of 50, IFCA's five passes.",
        "The paper's mn = 60,000·P holds for MNIST only: 200 clients of 500 images take the 50,000 "
        "training images at each of two angles.",
        "The paper ran FedBCD alone on a ResNet-20; here all methods train the same network.",
        "IFCA's own paper has 81.51 for IFCA on the same data; its released code takes steps of "
        "0.25.",
        "Images are not augmented. A client is tested on its share of the test images at its "
        "rotation, 100 of them.",
        "The loss that is drawn is that of the test images; the paper draws that of the training "
        "images.",
    ),
    figures={
        "": curves_of("accuracy", "Test accuracy, %"),
        "-loss": curves_of("loss", "Test loss", log=True),
    },
)

EXPERIMENTS = (TABLE_2_CIFAR,)
