"""CFL-MGD (Zhao, Xie, Xing, Zhang, Ma 2023): table 2, figures 3 and 4."""

from __future__ import annotations

from typing import Any

import coterie as ct
from reproduction.catalogue.ifca import ARI, MEDIUM_DATA, TOO_LONG
from reproduction.claims import Beats, ReachesSooner
from reproduction.figures import curve_figure
from reproduction.spec import ACCURACY, WORST, DataColumn, Experiment, TableLine, TableScale
from reproduction.work import measure_scores, train_and_measure

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
            method=ct.CFLMGD(clusters=4, init="random", beta=0.9, **STEPS),
            options=CHOOSES_ON_TEST,
        ),
        TableLine(
            label="IFCA",
            method=ct.IFCA(clusters=4, init="random", **STEPS),
            options=CHOOSES_ON_TEST,
        ),
        TableLine(label="FedAvg", method=ct.FedAvg(**STEPS, weighted=False)),
        TableLine(label="FedBCD", method=ct.FedBCD()),
        TableLine(label="local", method=ct.LocalOnly(**STEPS), in_paper=False),
        TableLine(label="FedAvg, fine-tuned", method=ct.FineTuned(**STEPS), in_paper=False),
    ),
    columns=(
        DataColumn(
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
    work=train_and_measure(measure_scores),
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
    figures={
        "": curve_figure("accuracy", "Test accuracy, %"),
        "-loss": curve_figure("loss", "Test loss", log=True),
    },
)

CIFAR_STEPS: dict[str, Any] = {"lr": 0.01, "local_steps": 50, "batch": 50, "decay": 0.99}

TABLE_2_CIFAR = Experiment(
    name="cfl_mgd.table2-cifar",
    title="CFL-MGD on rotated CIFAR-10",
    paper=PAPER,
    where="table 2 and figure 3, CIFAR-10",
    lines=(
        TableLine(
            label="CFL-MGD",
            method=ct.CFLMGD(clusters=2, init="random", beta=0.9, **CIFAR_STEPS),
            options=CHOOSES_ON_TEST,
        ),
        TableLine(
            label="IFCA",
            method=ct.IFCA(clusters=2, init="random", **CIFAR_STEPS),
            options=CHOOSES_ON_TEST,
        ),
        TableLine(label="FedAvg", method=ct.FedAvg(**CIFAR_STEPS, weighted=False)),
        TableLine(label="FedBCD", method=ct.FedBCD(**CIFAR_STEPS)),
        TableLine(label="local", method=ct.LocalOnly(**CIFAR_STEPS), in_paper=False),
        TableLine(label="FedAvg, fine-tuned", method=ct.FineTuned(**CIFAR_STEPS), in_paper=False),
    ),
    columns=(
        DataColumn(
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
    work=train_and_measure(measure_scores),
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
    figures={
        "": curve_figure("accuracy", "Test accuracy, %"),
        "-loss": curve_figure("loss", "Test loss", log=True),
    },
)

EXPERIMENTS = (TABLE_2_MNIST, TABLE_2_CIFAR)
