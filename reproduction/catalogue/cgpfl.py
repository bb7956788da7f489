"""CGPFL (Tang, Guo, Guo 2021): tables 1 and 2, figures 1 to 5."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import coterie as ct
from coterie.core.contract import Algorithm
from reproduction.claims import Beats
from reproduction.figures import curve_figure
from reproduction.figures_of_groups import group_count_figure, group_map_figure
from reproduction.figures_of_tables import column_figure
from reproduction.spec import (
    ACCURACY,
    WORST,
    DataColumn,
    Experiment,
    Measured,
    RecordedSearch,
    TableCell,
    TableLine,
    TableScale,
    with_settings,
)
from reproduction.work import (
    group_history,
    load_federation,
    measure_scores,
    train,
    train_and_measure,
)

PAPER = "Tang et al. 2021"
PLAIN: dict[str, Any] = {"lr": 0.005, "local_steps": 10, "batch": 20}
TIED: dict[str, Any] = {"lr": 0.005, "outer": 10, "inner": 5, "batch": 20}
LAMBDA: dict[str, Any] = {"lam": 12.0}
RELEASED = {"softmax": {"inner_lr": 0.1}, "mlp:128": {"inner_lr": 0.09}}  # in pFedMe's code
FINE_TUNED = TableLine(label="FedAvg, fine-tuned", method=ct.FineTuned(**PLAIN), in_paper=False)
LOCAL = TableLine(label="local", method=ct.LocalOnly(**PLAIN), in_paper=False)
INNER_STEPS = (0.005, 0.01, 0.02, 0.05, 0.1)  # what was tried
INNER = {"pFedMe(PM)": 0.005, "CGPFL(2)": 0.02, "CGPFL(4)": 0.01, "CGPFL-Heur": 0.05}  # was found


def personal_line(label: str, method: Algorithm) -> TableLine:
    """Return a line of a method with personal models, with the inner step size of our search."""
    return TableLine(label=label, method=with_settings(method, {"inner_lr": INNER[label]}))


PFEDME = personal_line("pFedMe(PM)", ct.PFedMe(**TIED, **LAMBDA))
CGPFL_2 = personal_line("CGPFL(2)", ct.CGPFL(clusters=2, **TIED, **LAMBDA))
CGPFL_4 = personal_line("CGPFL(4)", ct.CGPFL(clusters=4, **TIED, **LAMBDA))
HEUR = personal_line("CGPFL-Heur", ct.CGPFLHeur(**TIED, **LAMBDA))
SEARCHES = tuple(
    RecordedSearch(
        line=line,
        column="λ=12",
        over={"inner_lr": INNER_STEPS},
        best={"inner_lr": step},
        taken="found with 50 rounds",
    )
    for line, step in INNER.items()
)


def pairs_of_classes(label: str, base: str, model: str, **settings: Any) -> DataColumn:
    """Return a column of 40 clients with two classes each."""
    return DataColumn(
        label=label,
        data=f"pathological:{base}",
        data_options={"clients": 40},
        model=model,
        options={"rounds": 200, "eval_every": 10},
        settings=settings,
    )


MNIST_MLR = pairs_of_classes("MNIST-MLR", "mnist", "softmax")
MNIST_DNN = pairs_of_classes("MNIST-DNN", "mnist", "mlp:128")
FMNIST_MLR = pairs_of_classes("FMNIST-MLR", "fashion_mnist", "softmax")
FMNIST_DNN = pairs_of_classes("FMNIST-DNN", "fashion_mnist", "mlp:128")
FOUR = (MNIST_MLR, MNIST_DNN, FMNIST_MLR, FMNIST_DNN)
FULL = TableScale(seeds=5, settings_by_model=RELEASED, nearer=("inner_lr",))
MEDIUM = TableScale(seeds=3, data_options={"samples": 200}, options={"rounds": 25})
SHORT = replace(MEDIUM, options={"rounds": 20, "eval_every": 2})
LONGER = replace(MEDIUM, options={"rounds": 50, "eval_every": 5})
SMOKE_DATA = {"clients": 8, "samples": 40}


def by_column(*numbers: str) -> dict[str, str]:
    """Return the paper's numbers by column, in the order of the four columns."""
    return dict(zip((column.label for column in FOUR), numbers))


DRAWN = (  # in figures 1 and 2
    "CGPFL(2)",
    "CGPFL(4)",
    "CGPFL-Heur",
    "pFedMe(PM)",
    "Ditto",
    "Per-FedAvg(HF)",
    "local",
)
TABLE_1 = Experiment(
    name="cgpfl.table1",
    title="CGPFL among personal methods, two classes per client",
    paper=PAPER,
    where="table 1 without CIFAR-10, figures 1 and 2",
    lines=(
        TableLine(label="FedAvg", method=ct.FedAvg(**PLAIN)),
        TableLine(label="IFCA(4)", method=ct.IFCA(clusters=4, init="random", **PLAIN)),
        TableLine(label="L2SGD", method=ct.L2SGD(local_steps=10, batch=20)),
        TableLine(label="APFL", method=ct.APFL(**PLAIN)),
        PFEDME,
        TableLine(label="Per-FedAvg(HF)", method=ct.PerFedAvg(**PLAIN)),
        TableLine(label="Ditto", method=ct.Ditto(**PLAIN)),
        replace(CGPFL_2, in_paper=False),  # in the figures alone
        CGPFL_4,
        HEUR,
        LOCAL,
        FINE_TUNED,
    ),
    columns=FOUR,
    scales={
        "full": FULL,
        "medium": SHORT,
        "smoke": TableScale(
            seeds=1, data_options=SMOKE_DATA, options={"rounds": 2}, columns=("MNIST-MLR",)
        ),
    },
    work=train_and_measure(measure_scores),
    quantities=(ACCURACY, WORST),
    printed={
        "FedAvg": by_column("88.63", "91.05", "82.44", "83.45"),
        "IFCA(4)": by_column("95.27", "96.19", "91.55", "92.56"),
        "L2SGD": by_column("89.46", "92.48", "88.59", "90.64"),
        "APFL": by_column("92.69", "95.59", "92.60", "93.76"),
        "pFedMe(PM)": by_column("91.90", "92.20", "85.49", "86.87"),
        "Per-FedAvg(HF)": by_column("92.44", "93.54", "87.17", "87.57"),
        "Ditto": by_column("89.96", "92.85", "88.62", "90.56"),
        "CGPFL(4)": by_column("95.65", "96.55", "92.65", "93.56"),
        "CGPFL-Heur": by_column("97.41", "98.03", "95.18", "96.00"),
    },
    claims=(
        Beats("CGPFL-Heur", "CGPFL(4)"),
        Beats("CGPFL(4)", "IFCA(4)"),
        Beats("CGPFL(4)", "pFedMe(PM)"),
        Beats("IFCA(4)", "FedAvg"),
    ),
    figures={
        "": curve_figure("accuracy", "Test accuracy, %", ("MNIST-MLR", "MNIST-DNN"), lines=DRAWN),
        "-fmnist": curve_figure(
            "accuracy", "Test accuracy, %", ("FMNIST-MLR", "FMNIST-DNN"), lines=DRAWN
        ),
    },
)


# ------------------------------------------------------------------------------ table 2: λ
def lambda_experiment(
    name: str,
    column: DataColumn,
    first: int,
    printed: dict[str, tuple[float, ...]],
    tuned: tuple[RecordedSearch, ...] = (),
) -> Experiment:
    """Return a block of table 2: four methods against nine values of λ.

    Args:
        name: Name of the block.
        column: The data and the model.
        first: The smallest λ; the others follow in steps of 1.
        printed: By line, the paper's numbers.
        tuned: Searches of which the block is the reference.
    """
    strengths = range(first, first + 9)
    columns = tuple(
        replace(column, label=f"λ={strength}", settings={"lam": float(strength)})
        for strength in strengths
    )
    released = replace(
        column, label="λ=12, inner step 0.1", settings={"lam": 12.0, **RELEASED["softmax"]}
    )
    medium = replace(MEDIUM, columns=("λ=12", released.label))
    if column.model != "softmax":
        medium = replace(LONGER, columns=("λ=12",))
    return Experiment(
        name=f"cgpfl.table2-{name}",
        title=f"CGPFL against λ, {column.label}",
        paper=PAPER,
        where=f"table 2, {column.label}",
        lines=(PFEDME, CGPFL_2, CGPFL_4, HEUR, LOCAL, FINE_TUNED),
        columns=(*columns, released),
        scales={
            "full": replace(FULL, columns=tuple(column.label for column in columns)),
            "medium": medium,
            "smoke": TableScale(
                seeds=1, data_options=SMOKE_DATA, options={"rounds": 2}, columns=("λ=12",)
            ),
        },
        work=train_and_measure(measure_scores),
        quantities=(ACCURACY, WORST),
        printed={
            line: {f"λ={s}": f"{number:.2f}" for s, number in zip(strengths, numbers)}
            for line, numbers in printed.items()
        },
        claims=(
            Beats("CGPFL-Heur", "CGPFL(4)"),
            Beats("CGPFL(4)", "CGPFL(2)"),
            Beats("CGPFL(2)", "pFedMe(PM)"),
        ),
        tuned=tuned,
        figures={
            "": column_figure(f"Test accuracy, %, {column.label}"),
            "-rounds": curve_figure(
                "accuracy", f"Test accuracy, %, {column.label}", columns=("λ=12",)
            ),
        },
    )


TABLES_2 = (
    lambda_experiment(
        "mnist-mlr",
        MNIST_MLR,
        11,
        {
            "pFedMe(PM)": (91.46, 91.90, 92.19, 92.54, 92.80, 93.00, 93.15, 93.16, 93.04),
            "CGPFL(2)": (93.43, 93.34, 93.62, 93.88, 94.16, 93.69, 93.52, 93.52, 93.31),
            "CGPFL(4)": (95.49, 95.65, 95.19, 95.47, 95.60, 95.77, 96.49, 94.85, 94.53),
            "CGPFL-Heur": (97.46, 97.41, 96.27, 96.32, 96.34, 96.33, 96.32, 96.33, 96.25),
        },
        tuned=SEARCHES,
    ),
    lambda_experiment(
        "mnist-dnn",
        MNIST_DNN,
        9,
        {
            "pFedMe(PM)": (91.21, 91.54, 91.86, 92.21, 92.43, 92.79, 93.05, 93.30, 93.24),
            "CGPFL(2)": (94.11, 94.42, 94.71, 93.90, 94.14, 94.36, 94.49, 93.34, 93.36),
            "CGPFL(4)": (96.17, 96.37, 96.57, 96.55, 95.87, 95.99, 96.01, 95.45, 95.49),
            "CGPFL-Heur": (97.69, 97.86, 98.00, 98.03, 97.95, 97.96, 98.20, 98.14, 98.16),
        },
    ),
    lambda_experiment(
        "fmnist-mlr",
        FMNIST_MLR,
        9,
        {
            "pFedMe(PM)": (85.03, 85.26, 85.42, 85.49, 85.49, 85.28, 85.16, 84.76, 84.22),
            "CGPFL(2)": (90.29, 87.70, 87.93, 88.00, 87.72, 87.53, 87.65, 86.94, 85.19),
            "CGPFL(4)": (92.50, 92.84, 92.94, 92.65, 92.63, 92.44, 92.42, 92.17, 92.20),
            "CGPFL-Heur": (95.46, 95.44, 95.45, 95.36, 94.61, 94.40, 94.35, 94.41, 94.19),
        },
    ),
    lambda_experiment(  # the paper's line of Heur is damaged in the text
        "fmnist-dnn",
        FMNIST_DNN,
        7,
        {
            "pFedMe(PM)": (84.65, 85.20, 85.86, 86.28, 86.70, 86.87, 87.09, 87.10, 86.66),
            "CGPFL(2)": (87.69, 88.15, 88.72, 89.13, 89.59, 89.75, 91.15, 89.25, 88.93),
            "CGPFL(4)": (92.26, 92.89, 92.71, 92.86, 93.03, 93.56, 93.21, 93.44, 92.83),
        },
    ),
)


def measure_scores_and_groups(cell: TableCell, folder: Path) -> Measured:
    """Train a cell; measure the scores and the groups after each round."""
    fed = load_federation(cell)
    result = train(cell, fed, folder)
    measured = measure_scores(result, fed)
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
                    ct.CGPFL(clusters=k, **TIED, **LAMBDA), {"inner_lr": INNER["CGPFL(4)"]}
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
    work=measure_scores_and_groups,
    quantities=(ACCURACY, WORST),
    claims=(Beats("CGPFL-Heur", "K=1"), Beats("K=4", "K=1"), Beats("K=1", "pFedMe(PM)")),
    figures={
        "": group_count_figure(
            {f"K={k}": k for k in COUNTS}, "CGPFL-Heur", ("pFedMe(PM)", "local")
        ),
        "-rounds": curve_figure(
            "accuracy",
            "Test accuracy, %",
            lines=("K=1", "K=2", "K=4", "K=8", "CGPFL-Heur", "pFedMe(PM)", "local"),
        ),
        "-groups": group_map_figure("CGPFL-Heur"),
        "-distances": curve_figure(
            "distance_between_models",
            "Distance between two clients' models",
            lines=("K=1", "K=2", "K=4", "K=8", "CGPFL-Heur"),
        ),
        "-iterations": curve_figure(
            "k_means_iterations", "Iterations of k-means in a round", lines=("K=2", "K=4", "K=8")
        ),
    },
)

CIFAR_PLAIN: dict[str, Any] = {"lr": 0.03, "local_steps": 10, "batch": 20}
CIFAR_TIED: dict[str, Any] = {"lr": 0.03, "outer": 10, "inner": 5, "batch": 20, "lam": 12.0}
CIFAR_LABEL = "CIFAR-CNN"
CIFAR_PRINTED = {
    "FedAvg": "46.34",
    "IFCA(4)": "60.22",
    "L2SGD": "58.68",
    "APFL": "72.12",
    "pFedMe(PM)": "68.88",
    "Per-FedAvg(HF)": "71.46",
    "Ditto": "69.56",
    "CGPFL(4)": "72.78",
    "CGPFL-Heur": "74.75",
}

TABLE_1_CIFAR = Experiment(
    name="cgpfl.table1-cifar",
    title="CGPFL among personal methods, two classes of CIFAR-10 per client",
    paper=PAPER,
    where="table 1, CIFAR-10",
    lines=(
        TableLine(label="FedAvg", method=ct.FedAvg(**CIFAR_PLAIN)),
        TableLine(label="IFCA(4)", method=ct.IFCA(clusters=4, init="random", **CIFAR_PLAIN)),
        TableLine(label="L2SGD", method=ct.L2SGD(local_steps=10, batch=20)),
        TableLine(label="APFL", method=ct.APFL(**CIFAR_PLAIN)),
        TableLine(label="pFedMe(PM)", method=ct.PFedMe(**CIFAR_TIED, inner_lr=INNER["pFedMe(PM)"])),
        TableLine(label="Per-FedAvg(HF)", method=ct.PerFedAvg(**CIFAR_PLAIN), keep=("inner",)),
        TableLine(label="Ditto", method=ct.Ditto(**CIFAR_PLAIN)),
        TableLine(
            label="CGPFL(4)", method=ct.CGPFL(clusters=4, **CIFAR_TIED, inner_lr=INNER["CGPFL(4)"])
        ),
        TableLine(
            label="CGPFL-Heur", method=ct.CGPFLHeur(**CIFAR_TIED, inner_lr=INNER["CGPFL-Heur"])
        ),
        TableLine(label="local", method=ct.LocalOnly(**CIFAR_PLAIN), in_paper=False),
        TableLine(label="FedAvg, fine-tuned", method=ct.FineTuned(**CIFAR_PLAIN), in_paper=False),
    ),
    columns=(
        DataColumn(
            label=CIFAR_LABEL,
            data="pathological:cifar10",
            data_options={"clients": 40},
            model="cnn",
            options={"rounds": 300, "eval_every": 10},
        ),
    ),
    scales={
        "full": TableScale(seeds=5),
        "medium": TableScale(
            seeds=3,
            data_options={"clients": 20, "samples": 60},
            options={"rounds": 20, "eval_every": 5},
            settings={"local_steps": 6, "outer": 3, "inner": 2, "batch": 20},
            model="cnn:4",
            remarks=(
                "The paper's setting takes days on a processor: this is a quarter of the network's "
                "channels on 1,200 images, and R = 3 and S = 2 in place of 10 and 5.",
            ),
        ),
        "smoke": TableScale(
            seeds=1,
            data_options={"clients": 4, "samples": 20},
            options={"rounds": 1},
            settings={"local_steps": 2, "outer": 2, "inner": 1, "batch": 10},
            model="cnn:16",
            lines=("CGPFL(4)", "CGPFL-Heur"),
        ),
    },
    work=train_and_measure(measure_scores),
    quantities=(ACCURACY, WORST),
    printed={line: {CIFAR_LABEL: number} for line, number in CIFAR_PRINTED.items()},
    claims=(
        Beats("CGPFL-Heur", "CGPFL(4)"),
        Beats("CGPFL(4)", "IFCA(4)", by=5),
        Beats("CGPFL(4)", "pFedMe(PM)", by=2),
        Beats("IFCA(4)", "FedAvg", by=5),
    ),
    figures={"": curve_figure("accuracy", "Test accuracy, %")},
)

EXPERIMENTS = (TABLE_1, *TABLES_2, FIGURE_3, TABLE_1_CIFAR)
