"""Tang, Guo, Guo: Personalized Federated Learning with Contextualized Generalization (CGPFL)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.core.contract import Algorithm
from coterie.methods.apfl import APFL
from coterie.methods.cgpfl import CGPFL, CGPFLHeur
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg, FineTuned
from coterie.methods.ifca import IFCA
from coterie.methods.l2sgd import L2SGD
from coterie.methods.local_only import LocalOnly
from coterie.methods.perfedavg import PerFedAvg
from coterie.methods.pfedme import PFedMe
from reproduction.claims import Beats
from reproduction.figures import curves_of
from reproduction.figures_of_tables import against_columns
from reproduction.spec import (
    ACCURACY,
    WORST,
    Experiment,
    RecordedSearch,
    TableColumn,
    TableLine,
    TableScale,
    with_settings,
)
from reproduction.work import scores, trained

PAPER = "Tang et al. 2021"
PLAIN: dict[str, Any] = {"lr": 0.005, "local_steps": 10, "batch": 20}
TIED: dict[str, Any] = {"lr": 0.005, "outer": 10, "inner": 5, "batch": 20}
LAMBDA: dict[str, Any] = {"lam": 12.0}
RELEASED = {"softmax": {"inner_lr": 0.1}, "mlp:128": {"inner_lr": 0.09}}  # in pFedMe's code
FINE_TUNED = TableLine(label="FedAvg, fine-tuned", method=FineTuned(**PLAIN), in_paper=False)
LOCAL = TableLine(label="local", method=LocalOnly(**PLAIN), in_paper=False)
INNER_STEPS = (0.005, 0.01, 0.02, 0.05, 0.1)  # what was tried
INNER = {"pFedMe(PM)": 0.005, "CGPFL(2)": 0.02, "CGPFL(4)": 0.01, "CGPFL-Heur": 0.05}  # was found


def tied(label: str, method: Algorithm) -> TableLine:
    """A line of a method with personal models, at the inner step size that was found for it."""
    return TableLine(label=label, method=with_settings(method, {"inner_lr": INNER[label]}))


PFEDME = tied("pFedMe(PM)", PFedMe(**TIED, **LAMBDA))
CGPFL_2 = tied("CGPFL(2)", CGPFL(clusters=2, **TIED, **LAMBDA))
CGPFL_4 = tied("CGPFL(4)", CGPFL(clusters=4, **TIED, **LAMBDA))
HEUR = tied("CGPFL-Heur", CGPFLHeur(**TIED, **LAMBDA))
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
OPEN_POINTS = (
    "Sizes are drawn from 400 to 5,000 images and scaled down to the 60,000 there are: without "
    "that 40 clients would need 108,000.",
    "All these images train, and test images come from the data set's own test part; in the paper "
    "a quarter of a client's images are its test images.",
    "The softmax model has no ℓ2 penalty: the paper has one, and does not print its strength.",
    "IFCA starts from random centres; the paper says that it needs a good start, and not which it "
    "had.",
    "Which two classes a client has is drawn at random; the batch (20) is that of pFedMe's "
    "released code.",
    "Of the inner and the outer step size one is printed. pFedMe's released code has an inner step "
    "of 0.1 for the softmax model on MNIST, with which inner steps overshoot from λ = 10 on and "
    "diverge from λ = 20 on, and of 0.09 for the network; so has the full scale. For the medium "
    "scale it was searched for on MNIST-MLR at λ = 12 (`cgpfl.table2-mnist-mlr`), for each method "
    "alike; columns that name no inner step have what was found.",
    "The methods compared with take ten steps a round of the same size on batches of 20, but for "
    "L2SGD, whose own step of 1 is divided by the number of clients.",
)


FINDINGS = (
    "On MLR the paper's order, and gaps of its size, appear with the inner step of 0.1, where "
    "inner steps overshoot: a client does not solve its own problem, and the more groups there "
    "are, the nearer to its data the centre is from which it starts. With the inner step that was "
    "found for each method (of pFedMe's the smallest that was tried was best) all of them are much "
    "better and close together, and the order is lost.",
    "Training alone is ahead of all of them: two classes are told apart by a client's own images. "
    "The paper has no such line.",
)


def pairs_of_classes(label: str, base: str, model: str, **settings: Any) -> TableColumn:
    """40 clients with two classes each."""
    return TableColumn(
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
    """The paper's numbers, in the order of the four columns."""
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
        TableLine(label="FedAvg", method=FedAvg(**PLAIN)),
        TableLine(label="IFCA(4)", method=IFCA(clusters=4, init="random", **PLAIN)),
        TableLine(label="L2SGD", method=L2SGD(local_steps=10, batch=20)),
        TableLine(label="APFL", method=APFL(**PLAIN)),
        PFEDME,
        TableLine(label="Per-FedAvg(HF)", method=PerFedAvg(**PLAIN)),
        TableLine(label="Ditto", method=Ditto(**PLAIN)),
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
    work=trained(scores),
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
    findings=(
        "At full scale, with one seed, pFedMe, CGPFL(2), CGPFL(4) and CGPFL-Heur stand in the "
        "paper's order with each model and data set that was run; on MNIST-DNN they have 85.9, "
        "88.9, 93.5 and 95.8 (92.2, 93.9, 96.6 and 98.0 in the paper's tables).",
        "At full scale, with one seed, MNIST-MLR has CGPFL(4) and CGPFL-Heur within a point of the "
        "paper's numbers, and pFedMe, FedAvg and IFCA(4) one to two points below theirs. L2SGD, "
        "APFL and Ditto are far ahead of theirs (97.3, 98.4 and 97.7; 89.5, 92.7 and 90.0 in the "
        "paper) and of CGPFL-Heur (96.9): their steps do not overshoot. On FMNIST-MLR IFCA(4) is "
        "ahead of CGPFL(4), too, whose inner step is too long for these images.",
        "The methods that come out first are those nearest to training alone (L2SGD, Ditto, APFL), "
        "and training alone is level with them: two classes are told apart by a client's own "
        "images. The paper has no such line.",
        "FedAvg and IFCA, whose models must serve more classes than two, have not converged after "
        "the 20 rounds of the medium scale.",
    ),
    open_points=OPEN_POINTS,
    figures={
        "": curves_of("accuracy", "Test accuracy, %", ("MNIST-MLR", "MNIST-DNN"), lines=DRAWN),
        "-fmnist": curves_of(
            "accuracy", "Test accuracy, %", ("FMNIST-MLR", "FMNIST-DNN"), lines=DRAWN
        ),
    },
)


# ------------------------------------------------------------------------------ table 2: λ
def at_lambda(
    name: str,
    column: TableColumn,
    first: int,
    printed: dict[str, tuple[float, ...]],
    tuned: tuple[RecordedSearch, ...] = (),
    findings: tuple[str, ...] = (),
) -> Experiment:
    """A block of table 2: four methods against nine λ, from `first` on."""
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
                seeds=1,
                data_options=SMOKE_DATA,
                options={"rounds": 2},
                columns=("λ=12",),
            ),
        },
        work=trained(scores),
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
        findings=(*FINDINGS, *findings),
        open_points=OPEN_POINTS,
        tuned=tuned,
        figures={
            "": against_columns(f"Test accuracy, %, {column.label}"),
            "-rounds": curves_of(
                "accuracy", f"Test accuracy, %, {column.label}", columns=("λ=12",)
            ),
        },
    )


EXPERIMENTS = (
    TABLE_1,
    at_lambda(
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
        findings=(
            "With 200 rounds, all images and the inner step of the released code, λ = 12 comes "
            "within 3.3 points of the paper's numbers, in its order: 88.6, 90.4, 93.7 and 96.9 "
            "here, 91.9, 93.3, 95.7 and 97.4 in the paper; with λ = 11 and one seed all four are "
            "within 1.2 points.",
            "With larger λ ours fall (pFedMe to 80.7 at λ = 15 and 25.1 at λ = 19, with one seed), "
            "for the inner steps overshoot ever further and diverge from λ = 20 on, where the "
            "paper's stay level: its inner step, which is not printed, was shorter there, or "
            "chosen for each λ.",
        ),
    ),
    at_lambda(
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
    at_lambda(
        "fmnist-mlr",
        FMNIST_MLR,
        9,
        {
            "pFedMe(PM)": (85.03, 85.26, 85.42, 85.49, 85.49, 85.28, 85.16, 84.76, 84.22),
            "CGPFL(2)": (90.29, 87.70, 87.93, 88.00, 87.72, 87.53, 87.65, 86.94, 85.19),
            "CGPFL(4)": (92.50, 92.84, 92.94, 92.65, 92.63, 92.44, 92.42, 92.17, 92.20),
            "CGPFL-Heur": (95.46, 95.44, 95.45, 95.36, 94.61, 94.40, 94.35, 94.41, 94.19),
        },
        findings=(
            "At full scale, with the inner step of the released code, λ = 12 has the paper's order "
            "and gaps of its size (3.7, 3.5 and 6.0; 2.5, 4.7 and 2.7 in the paper), six to ten "
            "points below its numbers. The worst tenth of the clients is at chance under all four "
            "methods: these images are longer vectors than MNIST's, so that a step of 0.1 "
            "overshoots further. The paper's step, which is not printed, may have been smaller.",
            "The inner steps of the medium scale are those of MNIST, and 0.05, which CGPFL-Heur "
            "has there, is too large here: on held-out rows of other seeds pFedMe and CGPFL(4) "
            "lose ten and five points with it against their best. CGPFL-Heur may be better than it "
            "looks; a search of its own on Fashion-MNIST is still to be done.",
        ),
    ),
    at_lambda(  # the paper's line of Heur is damaged in the text
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
